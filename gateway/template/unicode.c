/* SPDX-License-Identifier: MIT */
/* Looks code points up in the tables. Called by the string methods and filters; pure. */
#include "gateway/template/unicode.h"
#include "common/base.h"

struct span {
    uint32_t first, last;
};
/* Every step-th code point from first to last becomes itself + delta. */
struct change {
    uint32_t first, last, step;
    int32_t delta;
};
struct full {
    uint32_t from, to[UNICODE_MAX_FULL]; /* ended by 0 when shorter */
};

#include "gateway/template/unicode_tables.h"

static bool in_spans(const struct span *spans, size_t n, uint32_t cp)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (spans[mid].last < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && spans[low].first <= cp;
}

bool unicode_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool unicode_is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool unicode_is_printable(uint32_t cp) { return in_spans(printable, ARRAY_LEN(printable), cp); }
bool unicode_is_alpha(uint32_t cp) { return in_spans(alpha, ARRAY_LEN(alpha), cp); }
bool unicode_is_decimal(uint32_t cp) { return in_spans(decimal, ARRAY_LEN(decimal), cp); }
bool unicode_is_cased(uint32_t cp) { return in_spans(cased, ARRAY_LEN(cased), cp); }

uint32_t unicode_to(enum unicode_case to, uint32_t cp, uint32_t ret[UNICODE_MAX_FULL])
{
    static const struct {
        const struct change *changes;
        size_t n_changes;
        const struct full *fulls;
        size_t n_fulls;
    } tables[] = {
        [UNICODE_LOWER] = {to_lower, ARRAY_LEN(to_lower), full_lower, ARRAY_LEN(full_lower)},
        [UNICODE_UPPER] = {to_upper, ARRAY_LEN(to_upper), full_upper, ARRAY_LEN(full_upper)},
        [UNICODE_TITLE] = {to_title, ARRAY_LEN(to_title), full_title, ARRAY_LEN(full_title)},
    };
    for (size_t i = 0; cp >= 0x80 && i < tables[to].n_fulls; i++) {
        if (tables[to].fulls[i].from != cp) continue;
        uint32_t n = 0;
        while (n < UNICODE_MAX_FULL && tables[to].fulls[i].to[n]) {
            ret[n] = tables[to].fulls[i].to[n];
            n++;
        }
        return n;
    }
    ret[0] = cp;
    const struct change *changes = tables[to].changes;
    size_t low = 0, high = tables[to].n_changes;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (changes[mid].last < cp)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < tables[to].n_changes && changes[low].first <= cp &&
        (cp - changes[low].first) % changes[low].step == 0)
        ret[0] = (uint32_t)((int64_t)cp + changes[low].delta);
    return 1;
}
