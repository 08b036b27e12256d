/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_METHOD_H
#define GATEWAY_TEMPLATE_METHOD_H
/* The methods of str, which fill a file of their own. */
#include "gateway/template/render.h"

const struct method *method_of_str(const struct str *name);

#endif
