/* SPDX-License-Identifier: MIT */
/*
 * Reads the header, the keys and the tensor table of a GGUF file, called by gguf_open. Nothing here
 * believes the file: every read is checked against the mapping's end, every count against the bytes
 * that are left, every size is multiplied with an overflow check, so the memory taken is bounded by
 * the file's own size. It reads no tensor data.
 */
#include "common/gguf_parse.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/ggml_type.h"

enum {
    /* Published files have under 100 keys and under 2,000 tensors; the bounds keep our tables
     * (about 120 and 170 bytes an entry) small whatever the file says. */
    PAIRS_MAX = 1 << 16,
    TENSORS_MAX = 1 << 16,
    /* Bytes of a key; the GGUF specification's bound. */
    KEY_BYTES_MAX = 65535,
    /* Bytes of a tensor's name with its NUL: GGML_MAX_NAME of ggml.h. */
    NAME_BYTES = 64,
    /* Strings of all arrays together, for their indices (128 MiB at most). The largest vocabularies
     * have about 2^18 tokens and twice as many merges. */
    STRINGS_MAX = 1 << 24,
    /* Of the data section. Smaller ones would leave values unaligned; the specification wants a
     * multiple of 8 and files use 32. */
    ALIGN_MIN = 8,
    ALIGN_MAX = 1 << 20,
    ALIGN_DEFAULT = 32,
    /* Least bytes of a key/value (length, one character, type, one byte) and of a tensor's entry
     * (length, dimensions' number, one dimension, type, offset). */
    PAIR_BYTES_MIN = 8 + 1 + 4 + 1,
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8,
};

/* Where we are, and what to call it in a failure. */
struct reader {
    struct gguf *g;
    struct why *why;
    uint64_t off;
    uint64_t n_strings; /* indexed so far */
    char what[96];      /* "key 'x'", for people */
};

__attribute__((format(printf, 3, 4))) static int refuse(struct reader *rd, int r,
                                                        const char *format, ...)
{
    char reason[256];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(reason, sizeof(reason), format, ap);
    va_end(ap);
    return why_set(rd->why, r, "%s: %s: %s", rd->g->path, rd->what, reason);
}

/* A name out of the file goes to logs and terminals: cut, and without control bytes. */
static void name_it(struct reader *rd, const char *kind, struct gguf_str name)
{
    char shown[64];
    size_t n = name.bytes < sizeof(shown) ? name.bytes : sizeof(shown) - 1;
    for (size_t i = 0; i < n; i++)
        shown[i] = name.at[i] >= ' ' && name.at[i] <= '~' ? name.at[i] : '?';
    shown[n] = '\0';
    (void)snprintf(rd->what, sizeof(rd->what), "%s '%s'", kind, shown);
}

static uint64_t left(const struct reader *rd) { return rd->g->map_bytes - rd->off; }

static int cut_short(struct reader *rd)
{
    return refuse(rd, -EPROTO, "the file ends inside it (at byte %" PRIu64 ")", rd->g->file_bytes);
}

static int read_bytes(struct reader *rd, void *ret, size_t bytes)
{
    if (left(rd) < bytes) return cut_short(rd);
    memcpy(ret, rd->g->map + rd->off, bytes);
    rd->off += bytes;
    return 0;
}

static int read_u32(struct reader *rd, uint32_t *ret) { return read_bytes(rd, ret, 4); }
static int read_u64(struct reader *rd, uint64_t *ret) { return read_bytes(rd, ret, 8); }

static int read_str(struct reader *rd, struct gguf_str *ret)
{
    uint64_t bytes = 0;
    int r = read_u64(rd, &bytes);
    if (r < 0) return r;
    if (bytes > left(rd)) {
        return refuse(rd, -EPROTO, "a string of %" PRIu64 " bytes, but %" PRIu64 " are left", bytes,
                      left(rd));
    }
    *ret = (struct gguf_str){(const char *)rd->g->map + rd->off, bytes};
    rd->off += bytes;
    return 0;
}

/* Bytes of a value of fixed size; 0 for strings, arrays and unknown types. */
static size_t type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return type < ARRAY_LEN(bytes) ? bytes[type] : 0;
}

static int read_strings(struct reader *rd, struct gguf_array *a)
{
    if (a->n > left(rd) / 8 || a->n > STRINGS_MAX - rd->n_strings) {
        return refuse(rd, -EPROTO,
                      "%" PRIu64 " strings; the file has room for %" PRIu64 ", and %d is the most",
                      a->n, left(rd) / 8, STRINGS_MAX);
    }
    CLEANUP(freep) uint64_t *index = malloc(a->n ? a->n * sizeof(*index) : 1);
    if (!index) return refuse(rd, -ENOMEM, "no memory for %" PRIu64 " strings", a->n);
    uint64_t first = rd->off;
    for (uint64_t i = 0; i < a->n; i++) {
        index[i] = rd->off - first;
        struct gguf_str skipped = {0};
        int r = read_str(rd, &skipped);
        if (r < 0) return r;
    }
    rd->n_strings += a->n;
    a->index = TAKE(index);
    return 0;
}

static int read_array(struct reader *rd, struct gguf_array *a)
{
    int r = read_u32(rd, &a->type);
    if (r == 0) r = read_u64(rd, &a->n);
    if (r < 0) return r;
    a->at = rd->g->map + rd->off;
    if (a->type == GGUF_STRING) return read_strings(rd, a);
    size_t bytes = type_bytes(a->type);
    if (a->type == GGUF_ARRAY) return refuse(rd, -ENOTSUP, "an array of arrays is not supported");
    if (!bytes) return refuse(rd, -EPROTO, "an array of the unknown type %" PRIu32, a->type);
    if (a->n > left(rd) / bytes) {
        return refuse(rd, -EPROTO,
                      "%" PRIu64 " elements of %zu bytes, but %" PRIu64 " bytes are left", a->n,
                      bytes, left(rd));
    }
    rd->off += a->n * bytes;
    return 0;
}

static int read_value(struct reader *rd, struct gguf_pair *p)
{
    p->at = rd->g->map + rd->off;
    int r = 0;
    if (p->type == GGUF_STRING) {
        r = read_str(rd, &p->str);
    } else if (p->type == GGUF_ARRAY) {
        r = read_array(rd, &p->array);
    } else {
        size_t bytes = type_bytes(p->type);
        if (!bytes) return refuse(rd, -EPROTO, "the unknown type %" PRIu32, p->type);
        if (bytes > left(rd)) return cut_short(rd);
        rd->off += bytes;
    }
    p->bytes = (size_t)(rd->g->map + rd->off - p->at);
    return r;
}

static int read_pair(struct reader *rd, struct gguf_pair *p)
{
    int r = read_str(rd, &p->key);
    if (r < 0) return r;
    if (p->key.bytes == 0 || p->key.bytes > KEY_BYTES_MAX) {
        return refuse(rd, -EPROTO, "its name has %zu bytes; 1 to %d are allowed", p->key.bytes,
                      KEY_BYTES_MAX);
    }
    name_it(rd, "key", p->key);
    if (memchr(p->key.at, '\0', p->key.bytes)) return refuse(rd, -EPROTO, "a NUL in its name");
    r = read_u32(rd, &p->type);
    return r < 0 ? r : read_value(rd, p);
}

int gguf_key_order(struct gguf_str a, struct gguf_str b)
{
    if (a.bytes != b.bytes) return a.bytes < b.bytes ? -1 : 1;
    return memcmp(a.at, b.at, a.bytes);
}

static int pair_order(const void *a, const void *b)
{
    return gguf_key_order(((const struct gguf_pair *)a)->key, ((const struct gguf_pair *)b)->key);
}

static int read_pairs(struct reader *rd, uint64_t n)
{
    struct gguf *g = rd->g;
    g->pairs = calloc(n ? n : 1, sizeof(*g->pairs));
    if (!g->pairs) return refuse(rd, -ENOMEM, "no memory for %" PRIu64 " keys", n);
    for (; g->n_pairs < n; g->n_pairs++) {
        (void)snprintf(rd->what, sizeof(rd->what), "key %zu of %" PRIu64, g->n_pairs + 1, n);
        int r = read_pair(rd, &g->pairs[g->n_pairs]);
        if (r < 0) return r;
    }
    qsort(g->pairs, n, sizeof(*g->pairs), pair_order);
    for (uint64_t i = 1; i < n; i++) {
        if (gguf_key_order(g->pairs[i - 1].key, g->pairs[i].key) != 0) continue;
        name_it(rd, "key", g->pairs[i].key);
        return refuse(rd, -EPROTO, "it is there twice");
    }
    return 0;
}

/* Values and bytes of a tensor from its dimensions and type. */
static int measure(struct reader *rd, struct gguf_tensor *t)
{
    const struct ggml_format *f = ggml_format(t->type);
    if (!f) return refuse(rd, -ENOTSUP, "the unknown type %" PRIu32, t->type);
    uint64_t n = 1;
    for (unsigned i = 0; i < 4; i++) {
        if (t->ne[i] == 0) return refuse(rd, -EPROTO, "dimension %u is 0", i);
        /* A tensor's values must be countable in int64_t, as ggml counts them. */
        if (__builtin_mul_overflow(n, t->ne[i], &n) || n > INT64_MAX)
            return refuse(rd, -EPROTO, "its dimensions multiply beyond 2^63");
    }
    if (t->ne[0] % f->block_values) {
        return refuse(rd, -EPROTO, "rows of %" PRIu64 " values, but %s has blocks of %" PRIu32,
                      t->ne[0], f->name, f->block_values);
    }
    if (__builtin_mul_overflow(n / f->block_values, (uint64_t)f->block_bytes, &t->bytes))
        return refuse(rd, -EPROTO, "its bytes overflow 64 bits");
    return 0;
}

static int read_tensor(struct reader *rd, struct gguf_tensor *t, char *name)
{
    struct gguf_str s = {0};
    int r = read_str(rd, &s);
    if (r < 0) return r;
    name_it(rd, "tensor", s);
    if (s.bytes == 0 || s.bytes >= NAME_BYTES) {
        return refuse(rd, -EPROTO, "its name has %zu bytes; 1 to %d are allowed", s.bytes,
                      NAME_BYTES - 1);
    }
    if (memchr(s.at, '\0', s.bytes)) return refuse(rd, -EPROTO, "a NUL in its name");
    memcpy(name, s.at, s.bytes);
    *t = (struct gguf_tensor){
        .name = name, .ne = {1, 1, 1, 1}
    };
    r = read_u32(rd, &t->n_dims);
    if (r < 0) return r;
    if (t->n_dims == 0 || t->n_dims > 4)
        return refuse(rd, -EPROTO, "%" PRIu32 " dimensions; 1 to 4 are allowed", t->n_dims);
    for (uint32_t i = 0; i < t->n_dims && r == 0; i++)
        r = read_u64(rd, &t->ne[i]);
    if (r == 0) r = read_u32(rd, &t->type);
    if (r == 0) r = read_u64(rd, &t->off);
    return r < 0 ? r : measure(rd, t);
}

static int name_order(const void *a, const void *b, void *arg)
{
    const struct gguf *g = arg;
    return strcmp(g->tensors[*(const uint32_t *)a].name, g->tensors[*(const uint32_t *)b].name);
}

static int sort_tensors(struct reader *rd)
{
    struct gguf *g = rd->g;
    for (size_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = (uint32_t)i;
    qsort_r(g->by_name, g->n_tensors, sizeof(*g->by_name), name_order, g);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const char *name = g->tensors[g->by_name[i]].name;
        if (strcmp(g->tensors[g->by_name[i - 1]].name, name) != 0) continue;
        name_it(rd, "tensor", (struct gguf_str){name, strlen(name)});
        return refuse(rd, -EPROTO, "it is there twice");
    }
    return 0;
}

static int read_tensors(struct reader *rd, uint64_t n)
{
    struct gguf *g = rd->g;
    g->tensors = calloc(n ? n : 1, sizeof(*g->tensors));
    g->names = calloc(n ? n : 1, NAME_BYTES);
    g->by_name = calloc(n ? n : 1, sizeof(*g->by_name));
    if (!g->tensors || !g->names || !g->by_name)
        return refuse(rd, -ENOMEM, "no memory for %" PRIu64 " tensors", n);
    for (; g->n_tensors < n; g->n_tensors++) {
        size_t i = g->n_tensors;
        (void)snprintf(rd->what, sizeof(rd->what), "tensor %zu of %" PRIu64, i + 1, n);
        int r = read_tensor(rd, &g->tensors[i], g->names + i * NAME_BYTES);
        if (r < 0) return r;
    }
    return sort_tensors(rd);
}

static int read_alignment(struct reader *rd, uint64_t *ret)
{
    static const char key[] = "general.alignment";
    name_it(rd, "key", (struct gguf_str){key, sizeof(key) - 1});
    uint64_t align;
    int r = gguf_u64(rd->g, key, &align);
    if (r == -ENOENT) align = ALIGN_DEFAULT;
    if (r < 0 && r != -ENOENT) return refuse(rd, r, "it is not a non-negative integer");
    if (align < ALIGN_MIN || align > ALIGN_MAX || (align & (align - 1))) {
        return refuse(rd, -EPROTO, "%" PRIu64 " is not a power of two from %d to %d", align,
                      ALIGN_MIN, ALIGN_MAX);
    }
    *ret = align;
    return 0;
}

/* Turns offsets into the data section into offsets into the file, each tensor inside it. */
static int place_tensors(struct reader *rd)
{
    struct gguf *g = rd->g;
    uint64_t align = 0;
    int r = read_alignment(rd, &align);
    if (r < 0) return r;
    g->data_off = (rd->off + align - 1) & ~(align - 1);
    uint64_t data_bytes = g->file_bytes > g->data_off ? g->file_bytes - g->data_off : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        name_it(rd, "tensor", (struct gguf_str){t->name, strlen(t->name)});
        if (t->off % align) {
            return refuse(rd, -EPROTO, "its offset %" PRIu64 " is not a multiple of %" PRIu64,
                          t->off, align);
        }
        if (t->off > data_bytes || t->bytes > data_bytes - t->off) {
            return refuse(rd, -EPROTO,
                          "%" PRIu64 " bytes at %" PRIu64 " of the data section, which has %" PRIu64
                          " (is the file cut short?)",
                          t->bytes, t->off, data_bytes);
        }
        t->off += g->data_off;
    }
    return 0;
}

static int read_header(struct reader *rd, uint64_t *n_tensors, uint64_t *n_pairs)
{
    (void)snprintf(rd->what, sizeof(rd->what), "header");
    char magic[4];
    uint32_t version = 0;
    int r = read_bytes(rd, magic, sizeof(magic));
    if (r < 0) return r;
    if (memcmp(magic, "GGUF", 4) != 0) return refuse(rd, -EPROTO, "this is not a GGUF file");
    r = read_u32(rd, &version);
    if (r < 0) return r;
    if (version != 0 && (version & 0xffff) == 0)
        return refuse(rd, -ENOTSUP, "a big-endian file; only little-endian ones are supported");
    if (version != 2 && version != 3) {
        return refuse(rd, -ENOTSUP, "GGUF version %" PRIu32 "; only 2 and 3 are supported",
                      version);
    }
    r = read_u64(rd, n_tensors);
    if (r == 0) r = read_u64(rd, n_pairs);
    if (r < 0) return r;
    if (*n_pairs > PAIRS_MAX || *n_pairs > left(rd) / PAIR_BYTES_MIN) {
        return refuse(rd, -EPROTO,
                      "%" PRIu64 " keys; the file has room for %" PRIu64 ", and %d is the most",
                      *n_pairs, left(rd) / PAIR_BYTES_MIN, PAIRS_MAX);
    }
    if (*n_tensors > TENSORS_MAX || *n_tensors > left(rd) / TENSOR_BYTES_MIN) {
        return refuse(rd, -EPROTO,
                      "%" PRIu64 " tensors; the file has room for %" PRIu64 ", and %d is the most",
                      *n_tensors, left(rd) / TENSOR_BYTES_MIN, TENSORS_MAX);
    }
    return 0;
}

int gguf_parse(struct gguf *g, struct why *why)
{
    assert(g->map_bytes == g->file_bytes);
    struct reader rd = {.g = g, .why = why};
    uint64_t n_tensors = 0, n_pairs = 0;
    int r = read_header(&rd, &n_tensors, &n_pairs);
    if (r == 0) r = read_pairs(&rd, n_pairs);
    if (r == 0) r = read_tensors(&rd, n_tensors);
    if (r == 0) r = place_tensors(&rd);
    return r;
}
