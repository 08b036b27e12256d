/* SPDX-License-Identifier: MIT */
/* Owns the way from a template's source to its tokens: tags, white-space control, literals. Called
 * by the parser only. The rules are those of jinja2's lexer.py with trim_blocks and lstrip_blocks
 * set and keep_trailing_newline unset, as chat templates are written for. */
#include "gateway/template/ast.h"
#include "gateway/template/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum {
    LEXER_MAX_BRACKETS = 256, /* open at once; the parser's depth limit is lower */
    NUMBER_MAX_BYTES = 64,    /* of a literal; more digits than any number has */
};

struct lexer {
    struct arena *arena;
    const char *at, *end;
    uint32_t line;
    bool line_starts; /* what stands before at ended a line */
    struct token *tokens;
    size_t n, cap;
    char open[LEXER_MAX_BRACKETS]; /* the brackets that have to close */
    uint32_t n_open;
};

static int fail(const struct lexer *l, const char *what)
{
    return why_set(l->arena->why, -EPROTO, "line %u: %s", l->line, what);
}

static int push(struct lexer *l, struct token t)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        struct token *tokens = arena_grow(l->arena, l->tokens, l->cap * sizeof(t), cap * sizeof(t));
        if (!tokens) return -E2BIG;
        l->tokens = tokens;
        l->cap = cap;
    }
    t.line = l->line;
    l->tokens[l->n++] = t;
    return 0;
}

static void advance(struct lexer *l, const char *to)
{
    for (; l->at < to; l->at++)
        l->line += *l->at == '\n';
    l->line_starts = to[-1] == '\n';
}

static bool starts(const char *at, const char *end, const char *with)
{
    size_t n = strlen(with);
    return (size_t)(end - at) >= n && memcmp(at, with, n) == 0;
}

static const char *skip_space(const char *at, const char *end)
{
    while (at < end) {
        uint32_t cp, n = utf8_get(at, &cp);
        if (!unicode_is_space(cp)) break;
        at += n;
    }
    return at;
}

static const char *back_over_space(const char *from, const char *at)
{
    while (at > from) {
        const char *p = at - 1;
        while (((uint8_t)*p & 0xc0) == 0x80)
            p--;
        uint32_t cp;
        (void)utf8_get(p, &cp);
        if (!unicode_is_space(cp)) break;
        at = p;
    }
    return at;
}

/* Text up to a tag, whose sign ('-', '+' or none) and kind decide about the space before it. */
static int push_data(struct lexer *l, const char *to, char sign, bool is_variable)
{
    const char *from = l->at, *end = to;
    if (sign == '-') {
        end = back_over_space(from, to);
    } else if (sign != '+' && !is_variable) {
        const char *line = to;
        while (line > from && line[-1] != '\n')
            line--;
        if ((line > from || l->line_starts) && skip_space(line, to) == to) end = line;
    }
    if (end == from) return 0;
    const struct str *s = str_new(l->arena, from, (size_t)(end - from), false);
    if (!s) return -E2BIG;
    return push(l, (struct token){.kind = TOKEN_DATA, .str = s});
}

/* Where the end of a block or comment leaves off, or NULL: "-%}" takes the space behind it, "%}"
 * one newline, "+%}" nothing. */
static const char *tag_end(const char *at, const char *end, const char *mark)
{
    if (starts(at, end, mark)) {
        at += 2;
        return at < end && *at == '\n' ? at + 1 : at;
    }
    if (at < end && (*at == '-' || *at == '+') && starts(at + 1, end, mark))
        return *at == '-' ? skip_space(at + 3, end) : at + 3;
    return NULL;
}

/* The word in a tag of that word alone ("raw", "endraw"): the byte after it, or NULL. */
static const char *tag_word(const char *at, const char *end, const char *word)
{
    if (!starts(at, end, "{%")) return NULL;
    at += 2;
    if (at < end && (*at == '-' || *at == '+')) at++;
    at = skip_space(at, end);
    return starts(at, end, word) ? skip_space(at + strlen(word), end) : NULL;
}

static char sign_of(const char *tag, const char *end)
{
    return tag + 2 < end && (tag[2] == '-' || tag[2] == '+') ? tag[2] : 0;
}

/* {% raw %} keeps the newline behind it, unlike every other block. */
static const char *raw_begin(const char *tag, const char *end)
{
    const char *at = tag_word(tag, end, "raw");
    if (!at) return NULL;
    if (starts(at, end, "%}")) return at + 2;
    return starts(at, end, "-%}") ? skip_space(at + 3, end) : NULL;
}

static int lex_raw(struct lexer *l, const char *body)
{
    advance(l, body);
    for (const char *p = l->at; p < l->end; p++) {
        const char *at = *p == '{' ? tag_word(p, l->end, "endraw") : NULL;
        const char *after = at ? tag_end(at, l->end, "%}") : NULL;
        if (!after) continue;
        int r = push_data(l, p, sign_of(p, l->end), false);
        if (r < 0) return r;
        advance(l, after);
        return 0;
    }
    return l->at == l->end ? 0 : fail(l, "{% raw %} is not closed");
}

static int lex_comment(struct lexer *l, const char *body)
{
    for (const char *p = body; p < l->end; p++) {
        const char *after = tag_end(p, l->end, "#}");
        if (!after) continue;
        advance(l, after);
        return 0;
    }
    return l->at == l->end ? 0 : fail(l, "a comment is not closed");
}

/* \x41, \u0041, \U00000041: the digits' value, or -1. */
static int64_t hex(const char *at, const char *end, int digits)
{
    int64_t v = 0;
    if (end - at < digits) return -1;
    for (int i = 0; i < digits; i++) {
        if (!isxdigit((unsigned char)at[i])) return -1;
        int c = tolower((unsigned char)at[i]);
        v = v * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return v;
}

static int lex_hex_escape(struct lexer *l, const char **at, const char *end, struct str_buf *b)
{
    int digits = **at == 'x' ? 2 : **at == 'u' ? 4 : 8;
    int64_t cp = hex(*at + 1, end, digits);
    if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return fail(l, "a string has a bad \\x, \\u or \\U escape");
    buf_char(b, (uint32_t)cp, false);
    *at += 1 + digits;
    return 0;
}

/* jinja2 writes what is not ASCII as an escape before it reads escapes, so that a backslash in
 * front of it meets another one: the digits come out as text. */
static void escaped_point(const char **at, struct str_buf *b)
{
    char text[16];
    uint32_t cp;
    *at += utf8_get(*at, &cp);
    const char *format = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
    int n = snprintf(text, sizeof(text), format, cp);
    buf_add(b, text, (size_t)n, false);
}

/* The escape after a backslash, as in Python; an unknown one stays as it is. */
static int lex_escape(struct lexer *l, const char **at, const char *end, struct str_buf *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = **at ? strchr(from, **at) : NULL;
    if (known) {
        buf_add(b, &to[known - from], 1, false);
        *at += 1;
    } else if (**at == '\n') {
        *at += 1;
    } else if (**at == 'x' || **at == 'u' || **at == 'U') {
        return lex_hex_escape(l, at, end, b);
    } else if (**at >= '0' && **at <= '7') {
        uint32_t cp = 0;
        for (int i = 0; i < 3 && *at < end && **at >= '0' && **at <= '7'; i++)
            cp = cp * 8 + (uint32_t)(*(*at)++ - '0');
        buf_char(b, cp, false);
    } else if (**at == 'N') {
        return fail(l, "\\N{...} escapes are not supported");
    } else if ((uint8_t) * *at >= 0x80) {
        escaped_point(at, b);
    } else {
        buf_lit(b, "\\");
    }
    return 0;
}

static int lex_string(struct lexer *l)
{
    const char *p = l->at + 1;
    while (p < l->end && *p != *l->at)
        p += *p == '\\' ? 2 : 1;
    if (p >= l->end) return fail(l, "a string is not closed");
    struct str_buf b = {.arena = l->arena, .limit_bytes = STR_MAX_BYTES};
    for (const char *at = l->at + 1; at < p;) {
        if (*at++ != '\\') {
            buf_add(&b, at - 1, 1, false);
            continue;
        }
        int r = lex_escape(l, &at, p, &b);
        if (r < 0) return r;
    }
    struct token t = {.kind = TOKEN_STRING};
    int r = buf_finish(&b, &t.str);
    if (r == 0) r = push(l, t);
    advance(l, p + 1);
    return r;
}

/* Digits of the base with single underscores between them. */
static const char *digits(const char *at, const char *end, int base)
{
    const char *const first = at, *last = at;
    for (; at < end; at++) {
        int c = tolower((unsigned char)*at);
        int v = isdigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (v < base)
            last = at + 1;
        else if (c != '_' || at != last || at == first)
            break;
    }
    return last;
}

static int push_number(struct lexer *l, const char *to, bool is_float, int base)
{
    char text[NUMBER_MAX_BYTES];
    size_t n = 0;
    for (const char *p = l->at + (base == 10 ? 0 : 2); p < to; p++) {
        if (*p == '_') continue;
        if (n + 1 == sizeof(text)) return fail(l, "a number is too long");
        text[n++] = *p;
    }
    text[n] = '\0';
    struct token t = {.kind = is_float ? TOKEN_FLOAT : TOKEN_INT};
    errno = 0;
    t.number = is_float ? value_float(strtod(text, NULL)) : value_int(strtoll(text, NULL, base));
    if (errno && !is_float) return fail(l, "an integer is too large");
    int r = push(l, t);
    advance(l, to);
    return r;
}

static int lex_number(struct lexer *l)
{
    const char *p = l->at, *end = l->end;
    static const struct {
        const char *prefix;
        int base;
    } bases[] = {
        {"0b", 2 },
        {"0B", 2 },
        {"0o", 8 },
        {"0O", 8 },
        {"0x", 16},
        {"0X", 16}
    };
    for (size_t i = 0; i < ARRAY_LEN(bases); i++) {
        const char *to = digits(p + 2, end, bases[i].base);
        if (starts(p, end, bases[i].prefix) && to > p + 2)
            return push_number(l, to, false, bases[i].base);
    }
    const char *to = digits(p, end, 10);
    /* "1.2" after a dot would be the item of an item: x.1.2. */
    bool after_dot = l->n && strcmp(l->tokens[l->n - 1].op, ".") == 0 &&
                     l->tokens[l->n - 1].kind == TOKEN_OPERATOR;
    bool is_float = false;
    if (!after_dot && to + 1 < end && *to == '.' && isdigit((unsigned char)to[1])) {
        to = digits(to + 1, end, 10);
        is_float = true;
    }
    if (!after_dot && to + 1 < end && (*to == 'e' || *to == 'E')) {
        const char *exponent = to + 1 + (to[1] == '+' || to[1] == '-');
        if (exponent < end && isdigit((unsigned char)*exponent)) {
            to = digits(exponent, end, 10);
            is_float = true;
        }
    }
    if (!is_float && *p == '0')
        for (to = p; to < end && *to == '0';
             to++) /* 012 is 0 and then 12: an error in Python too */
            ;
    return push_number(l, to, is_float, 10);
}

/* Where the name at this place ends, or the place itself. */
static const char *skip_name_text(const char *at, const char *end)
{
    while (at < end) {
        uint32_t cp, n = utf8_get(at, &cp);
        bool ascii = cp < 0x80 && (isalnum((int)cp) || cp == '_');
        if (!ascii && (cp < 0x80 || !(unicode_is_alpha(cp) || unicode_is_decimal(cp)))) break;
        at += n;
    }
    return at;
}

static int lex_name(struct lexer *l, const char *to)
{
    struct token t = {.kind = TOKEN_NAME,
                      .str = str_new(l->arena, l->at, (size_t)(to - l->at), false)};
    int r = t.str ? push(l, t) : -E2BIG;
    advance(l, to);
    return r;
}

static int balance(struct lexer *l, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *opens = strchr(open, c), *closes = strchr(close, c);
    if (opens) {
        if (l->n_open == LEXER_MAX_BRACKETS)
            return why_set(l->arena->why, -E2BIG, "line %u: brackets are nested too deep", l->line);
        l->open[l->n_open++] = close[opens - open];
    }
    if (closes && (l->n_open == 0 || l->open[--l->n_open] != c))
        return fail(l, "brackets do not match");
    return 0;
}

static int lex_operator(struct lexer *l)
{
    static const char two[][3] = {"//", "**", "==", "!=", ">=", "<="};
    struct token t = {.kind = TOKEN_OPERATOR};
    for (size_t i = 0; i < ARRAY_LEN(two); i++)
        if (starts(l->at, l->end, two[i])) memcpy(t.op, two[i], 3);
    if (!t.op[0] && *l->at && strchr("+-/*%~[](){}><=.:|,;", *l->at)) t.op[0] = *l->at;
    if (!t.op[0]) return fail(l, "a tag has a character that is no part of the language");
    int r = t.op[1] ? 0 : balance(l, t.op[0]);
    if (r == 0) r = push(l, t);
    advance(l, l->at + strlen(t.op));
    return r;
}

static const char *variable_end(const char *at, const char *end)
{
    if (starts(at, end, "}}")) return at + 2;
    return starts(at, end, "-}}") ? skip_space(at + 3, end) : NULL;
}

/* What stands between the marks of a {{ }} or {% %}. */
static int lex_tag(struct lexer *l, bool is_variable)
{
    int r = push(l, (struct token){.kind = is_variable ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN});
    l->n_open = 0;
    while (r == 0) {
        const char *at = skip_space(l->at, l->end);
        if (at > l->at) advance(l, at);
        if (l->at == l->end) return fail(l, "a tag is not closed");
        const char *end = l->n_open     ? NULL
                          : is_variable ? variable_end(at, l->end)
                                        : tag_end(at, l->end, "%}");
        if (end) {
            r = push(l, (struct token){.kind = is_variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END});
            advance(l, end);
            return r;
        }
        const char *name = skip_name_text(at, l->end);
        if (isdigit((unsigned char)*at))
            r = lex_number(l);
        else if (name > at)
            r = lex_name(l, name);
        else if (*at == '\'' || *at == '"')
            r = lex_string(l);
        else
            r = lex_operator(l);
    }
    return r;
}

static int lex_root(struct lexer *l)
{
    const char *p = l->at;
    while (p + 1 < l->end && !(*p == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#')))
        p++;
    if (p + 1 >= l->end) {
        int r = push_data(l, l->end, '+', true);
        advance(l, l->end);
        return r;
    }
    char sign = sign_of(p, l->end);
    int r = push_data(l, p, sign, p[1] == '{');
    if (r < 0) return r;
    const char kind = p[1], *body = p + 2 + (sign != 0), *raw = raw_begin(p, l->end);
    if (raw) return lex_raw(l, raw);
    advance(l, body);
    return kind == '#' ? lex_comment(l, body) : lex_tag(l, kind == '{');
}

/* Newlines become \n, and the last one goes. */
static int normalise(struct arena *a, const char *source, size_t bytes, const char **ret,
                     size_t *ret_bytes)
{
    char *text = arena_get(a, bytes + 1);
    if (!text) return -E2BIG;
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n') continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n') n--;
    *ret = text;
    *ret_bytes = n;
    return 0;
}

int lex_template(struct arena *a, const char *source, size_t bytes, struct token **ret)
{
    const char *text;
    size_t n;
    int r = normalise(a, source, bytes, &text, &n);
    if (r < 0) return r;
    struct lexer l = {.arena = a, .at = text, .end = text + n, .line = 1, .line_starts = true};
    while (r == 0 && l.at < l.end)
        r = lex_root(&l);
    if (r == 0) r = push(&l, (struct token){.kind = TOKEN_END});
    if (r == 0) *ret = l.tokens;
    return r;
}
