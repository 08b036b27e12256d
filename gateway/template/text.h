/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_TEXT_H
#define GATEWAY_TEMPLATE_TEXT_H
/*
 * What both filters and methods of str do with text. Each result keeps the runs of what it is made
 * of, and each call pays for the text that it walks.
 */
#include "gateway/template/render.h"
#include "gateway/template/unicode.h"

enum text_case {
    TEXT_LOWER,
    TEXT_UPPER,
    TEXT_TITLE,      /* str.title: a word starts behind what has no case */
    TEXT_CAPITALIZE, /* the first character */
    TEXT_SWAP,
    TEXT_TITLE_FILTER, /* jinja2's: a word starts behind white space, '-' and open brackets */
};
int text_case(struct render *r, const struct str *s, enum text_case how, struct value *ret);
/* chars NULL: white space. */
int text_strip(struct render *r, const struct str *s, const struct str *chars, bool left,
               bool right, struct value *ret);
/* separator NULL: runs of white space; max < 0: no limit. */
int text_split(struct render *r, const struct str *s, const struct str *separator, int64_t max,
               bool from_right, struct value *ret);
int text_split_lines(struct render *r, const struct str *s, bool keep_ends, struct list *ret);
int text_replace(struct render *r, const struct str *s, const struct str *old,
                 const struct str *new, int64_t count, struct value *ret);
/* how: '<' text first, '>' text last, '^' as str.center does. */
int text_pad(struct render *r, const struct str *s, int64_t width, const struct str *fill, char how,
             struct value *ret);

#endif
