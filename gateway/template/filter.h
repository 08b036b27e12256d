/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_FILTER_H
#define GATEWAY_TEMPLATE_FILTER_H
/* The three families of filters, a file each; filter_find() asks them in turn. */
#include "gateway/template/render.h"

const struct filter *filter_of_text(const struct str *name);   /* text in, text out */
const struct filter *filter_of_items(const struct str *name);  /* order and shape of lists */
const struct filter *filter_of_choice(const struct str *name); /* map, select and their kin */

/* x.a.b.0 for "a.b.0": what the "attribute" of filters means; an integer is one index. */
int attribute_path(struct render *r, struct value v, struct value path, struct value *ret);
/* Text in lower case, unless case counts or it is no text: what sorting filters compare. */
int fold_case(struct render *r, struct value v, bool case_sensitive, struct value *ret);
/* A truth that may be missing. */
bool flag_given(struct value v);

#endif
