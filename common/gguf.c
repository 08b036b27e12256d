/* SPDX-License-Identifier: MIT */
/*
 * Opens a GGUF file, answers for its keys and tensors, and maps single tensors. It owns the file's
 * descriptor and the mapping of the metadata; gguf_parse.c has checked everything that is answered
 * here. Called by the gateway and by workers from any thread; it changes nothing after gguf_open.
 */
#include "common/gguf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/gguf_parse.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read as they stand");

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }
static size_t page_up(size_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); }

void gguf_free(struct gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_pairs; i++)
        free((void *)g->pairs[i].array.index);
    free(g->pairs);
    free(g->tensors);
    free(g->names);
    free(g->by_name);
    if (g->map) (void)munmap(g->map, g->map_bytes);
    closep(&g->fd);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g) { return g->path; }

/* Opens and maps the whole file; the data section goes when its beginning is known. */
static int map_file(struct gguf *g, struct why *why)
{
    /* O_NONBLOCK: a FIFO by that name must not hang us before fstat refuses it. */
    g->fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (g->fd < 0) return why_set(why, -errno, "%s: %s", g->path, strerror(errno));
    struct stat st;
    if (fstat(g->fd, &st) < 0) return why_set(why, -errno, "%s: %s", g->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return why_set(why, -EINVAL, "%s: not a regular file", g->path);
    if (st.st_size == 0) return why_set(why, -EPROTO, "%s: the file is empty", g->path);
    g->file_bytes = g->map_bytes = (uint64_t)st.st_size;
    void *map = mmap(NULL, g->map_bytes, PROT_READ, MAP_PRIVATE, g->fd, 0);
    if (map == MAP_FAILED)
        return why_set(why, -errno, "%s: cannot be mapped: %s", g->path, strerror(errno));
    g->map = map;
    return 0;
}

static void unmap_data(struct gguf *g)
{
    size_t keep = page_up(min_u64(g->data_off, g->file_bytes));
    size_t have = page_up(g->map_bytes);
    if (keep < have) {
        (void)munmap(g->map + keep, have - keep);
        g->map_bytes = keep;
    }
}

int gguf_open(const char *path, struct why *why, struct gguf **ret)
{
    CLEANUP(gguf_freep) struct gguf *g = xnew(struct gguf);
    g->fd = -1;
    g->path = strdup(path);
    if (!g->path) return why_set(why, -ENOMEM, "%s: no memory", path);
    int r = map_file(g, why);
    if (r == 0) r = gguf_parse(g, why);
    if (r < 0) return r;
    unmap_data(g);
    *ret = TAKE(g);
    return 0;
}

const struct gguf_pair *gguf_pair(const struct gguf *g, const char *key)
{
    struct gguf_str want = {key, strlen(key)};
    size_t from = 0, to = g->n_pairs;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        int order = gguf_key_order(want, g->pairs[mid].key);
        if (order == 0) return &g->pairs[mid];
        if (order < 0)
            to = mid;
        else
            from = mid + 1;
    }
    return NULL;
}

/* The value of an integer type, widened. */
static int integer_from(const struct gguf_pair *p, bool *negative, uint64_t *ret)
{
    static const struct { /* bytes; 0: not an integer */
        uint8_t bytes;
        bool is_signed;
    } kinds[] = {
        [GGUF_U8] = {1, false},
          [GGUF_I8] = {1, true },
          [GGUF_U16] = {2, false},
        [GGUF_I16] = {2, true },
          [GGUF_U32] = {4, false},
          [GGUF_I32] = {4, true },
        [GGUF_U64] = {8, false},
          [GGUF_I64] = {8, true },
    };
    if (p->type >= ARRAY_LEN(kinds) || !kinds[p->type].bytes) return -EPROTO;
    unsigned bytes = kinds[p->type].bytes;
    uint64_t v = 0;
    memcpy(&v, p->at, bytes);
    *negative = kinds[p->type].is_signed && v >> (8 * bytes - 1);
    *ret = *negative && bytes < 8 ? v | UINT64_MAX << (8 * bytes) : v;
    return 0;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret)
{
    const struct gguf_pair *p = gguf_pair(g, key);
    if (!p) return -ENOENT;
    bool negative;
    uint64_t v;
    int r = integer_from(p, &negative, &v);
    if (r < 0 || negative) return -EPROTO;
    *ret = v;
    return 0;
}

int gguf_f64(const struct gguf *g, const char *key, double *ret)
{
    const struct gguf_pair *p = gguf_pair(g, key);
    if (!p) return -ENOENT;
    float f;
    bool negative;
    uint64_t v;
    if (p->type == GGUF_F64) {
        memcpy(ret, p->at, sizeof(*ret));
    } else if (p->type == GGUF_F32) {
        memcpy(&f, p->at, sizeof(f));
        *ret = (double)f;
    } else if (integer_from(p, &negative, &v) == 0) {
        /* Some converters write a whole number, such as rope.freq_base, as an integer. */
        *ret = negative ? (double)(int64_t)v : (double)v;
    } else {
        return -EPROTO;
    }
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *ret)
{
    const struct gguf_pair *p = gguf_pair(g, key);
    if (!p) return -ENOENT;
    if (p->type != GGUF_BOOL || *p->at > 1) return -EPROTO;
    *ret = *p->at;
    return 0;
}

int gguf_str(const struct gguf *g, const char *key, struct gguf_str *ret)
{
    const struct gguf_pair *p = gguf_pair(g, key);
    if (!p) return -ENOENT;
    if (p->type != GGUF_STRING) return -EPROTO;
    *ret = p->str;
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, uint32_t type, struct gguf_array *ret)
{
    const struct gguf_pair *p = gguf_pair(g, key);
    if (!p) return -ENOENT;
    if (p->type != GGUF_ARRAY || p->array.type != type) return -EPROTO;
    *ret = p->array;
    return 0;
}

struct gguf_str gguf_array_str(const struct gguf_array *a, uint64_t i)
{
    assert(a->type == GGUF_STRING && i < a->n);
    const char *at = (const char *)a->at + a->index[i];
    uint64_t bytes;
    memcpy(&bytes, at, sizeof(bytes));
    return (struct gguf_str){at + sizeof(bytes), bytes};
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
    assert((a->type == GGUF_I32 || a->type == GGUF_U32) && i < a->n);
    int32_t v;
    memcpy(&v, (const char *)a->at + i * sizeof(v), sizeof(v));
    return v;
}

int gguf_fd(const struct gguf *g) { return g->fd; }

size_t gguf_n_tensors(const struct gguf *g) { return g->n_tensors; }

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    size_t from = 0, to = g->n_tensors;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        const struct gguf_tensor *t = &g->tensors[g->by_name[mid]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            to = mid;
        else
            from = mid + 1;
    }
    return NULL;
}

void gguf_layer_bytes(const struct gguf *g, uint32_t n_layers, uint64_t *ret)
{
    bool tied = !gguf_tensor(g, "output.weight");
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        unsigned layer;
        if (sscanf(t->name, "blk.%u.", &layer) == 1 && layer < n_layers) {
            ret[layer] += t->bytes;
        } else if (strcmp(t->name, "token_embd.weight") == 0) {
            ret[0] += t->bytes;
            if (tied) ret[n_layers - 1] += t->bytes;
        } else {
            ret[n_layers - 1] += t->bytes;
        }
    }
}

int gguf_map(const struct gguf *g, const struct gguf_tensor *t, struct gguf_view *ret)
{
    uint64_t page = t->off & ~(uint64_t)(page_bytes() - 1);
    size_t before = (size_t)(t->off - page);
    size_t bytes = before + t->bytes;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, g->fd, (off_t)page);
    if (map == MAP_FAILED) return -errno;
    *ret = (struct gguf_view){(const char *)map + before, t->bytes, map, bytes};
    return 0;
}

void gguf_unmap(struct gguf_view *v)
{
    if (v->map_) (void)munmap(v->map_, v->map_bytes_);
    *v = (struct gguf_view){0};
}
