/* SPDX-License-Identifier: MIT */
#ifndef COMMON_GGUF_PARSE_H
#define COMMON_GGUF_PARSE_H
/*
 * Between the files that implement gguf.h: the object, and the parser that fills it (gguf_parse.c)
 * from the mapping that gguf.c made. Nobody else includes it.
 */
#include "common/gguf.h"

struct gguf_pair {
    struct gguf_str key;
    uint32_t type;           /* enum gguf_type */
    const uint8_t *at;       /* the value as it stands in the file, possibly unaligned */
    size_t bytes;            /* of the whole value, an array's type and count included */
    struct gguf_str str;     /* of a GGUF_STRING */
    struct gguf_array array; /* of a GGUF_ARRAY; this object owns its index */
};

struct gguf {
    char *path;
    int fd;
    uint64_t file_bytes;
    uint8_t *map; /* the metadata only, once gguf_open has returned */
    size_t map_bytes;
    uint64_t data_off; /* of the data section */
    size_t n_pairs;
    struct gguf_pair *pairs; /* sorted by pair_order */
    size_t n_tensors;
    struct gguf_tensor *tensors; /* in the file's order */
    char *names;                 /* of the tensors */
    uint32_t *by_name;           /* indices of tensors, sorted by name */
};

/* Fills pairs, tensors and data_off from map, which holds the whole file. On failure the object is
 * half-built and gguf_free releases it. */
int gguf_parse(struct gguf *g, struct why *why);

/* Shorter keys first, then by bytes: cheap to compare, and the same everywhere. */
int gguf_key_order(struct gguf_str a, struct gguf_str b);
const struct gguf_pair *gguf_pair(const struct gguf *g, const char *key);

#endif
