/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_TEMPLATE_UNICODE_H
#define GATEWAY_TEMPLATE_UNICODE_H
/*
 * What Python's str methods know of code points. The tables in unicode_tables.h are made by
 * make_unicode.py from Python's own unicodedata.
 */
#include <stdbool.h>
#include <stdint.h>

enum { UNICODE_MAX_FULL = 3 }; /* code points that one becomes at most: "ffi" in capitals */

enum unicode_case { UNICODE_LOWER, UNICODE_UPPER, UNICODE_TITLE };

bool unicode_is_space(uint32_t cp);     /* str.isspace: what strip() takes off */
bool unicode_is_line_end(uint32_t cp);  /* str.splitlines */
bool unicode_is_printable(uint32_t cp); /* str.isprintable: what repr() shows as it is */
bool unicode_is_alpha(uint32_t cp);
bool unicode_is_decimal(uint32_t cp);
bool unicode_is_cased(uint32_t cp);
/* The code points that cp becomes; returns how many. Final sigma is the caller's business. */
uint32_t unicode_to(enum unicode_case to, uint32_t cp, uint32_t ret[UNICODE_MAX_FULL]);

#endif
