/* SPDX-License-Identifier: MIT */
#ifndef COMMON_GGUF_H
#define COMMON_GGUF_H
/*
 * A GGUF file (version 2 or 3), read by mmap. The gateway reads its metadata (tokeniser, chat
 * template), workers also its tensors.
 *
 * The file is hostile until gguf_open has returned 0: every count, offset, type and string has been
 * bounded, keys and tensor names are unique, every tensor lies inside the data section. Failures
 * name the file, the key or tensor, and the reason. Only the metadata stays mapped; a tensor is
 * mapped by gguf_map when it is needed, so a stage maps and touches only its own layers. Immutable
 * after open; any thread may read.
 */
#include <stdbool.h>

#include "common/base.h"

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};

enum ggml_type {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q8_0 = 8,
};

struct gguf_str {
    const char *at; /* not NUL-terminated */
    size_t bytes;
};

/* An array of one element type. Strings are reached by gguf_array_str in O(1). */
struct gguf_array {
    uint32_t type; /* enum gguf_type of the elements */
    uint64_t n;
    const void *at;        /* packed elements (possibly unaligned), or the first string */
    const uint64_t *index; /* of a string array: byte offset of each from at */
};

struct gguf_tensor {
    const char *name; /* NUL-terminated */
    uint32_t type;    /* enum ggml_type */
    uint32_t n_dims;
    uint64_t ne[4]; /* ne[0] is contiguous; unused dimensions are 1 */
    uint64_t off;   /* from the file's beginning */
    uint64_t bytes;
};

/* A tensor's bytes, mapped read-only. */
struct gguf_view {
    const void *at; /* the tensor's first byte */
    size_t bytes;
    void *map_; /* what gguf_unmap needs */
    size_t map_bytes_;
};

struct gguf;

/* -EPROTO: not a sound GGUF file; -ENOTSUP: a version or tensor type that isn't known; -EINVAL: not
 * a regular file; -ENOMEM; or what open and mmap said. */
int gguf_open(const char *path, struct why *why, struct gguf **ret);
void gguf_free(struct gguf *g);
static inline void gguf_freep(struct gguf **g) { gguf_free(*g); }
const char *gguf_path(const struct gguf *g);
int gguf_fd(const struct gguf *g); /* read-only; stays g's */

/* Each: 0, -ENOENT (no such key) or -EPROTO (another type, or out of the range of the result).
 * gguf_u64 takes any unsigned or non-negative signed integer type, gguf_f64 those and any float. */
int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret);
int gguf_f64(const struct gguf *g, const char *key, double *ret);
int gguf_bool(const struct gguf *g, const char *key, bool *ret);
int gguf_str(const struct gguf *g, const char *key, struct gguf_str *ret);
int gguf_array(const struct gguf *g, const char *key, uint32_t type, struct gguf_array *ret);
struct gguf_str gguf_array_str(const struct gguf_array *a, uint64_t i);
int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
/* By name; NULL when there is none. */
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);
/* Bytes of each layer's tensors, added to ret [n_layers]. The embedding goes with the first layer,
 * everything else that is no layer's with the last; an embedding that is the output matrix as well
 * is in both. */
void gguf_layer_bytes(const struct gguf *g, uint32_t n_layers, uint64_t *ret);
int gguf_map(const struct gguf *g, const struct gguf_tensor *t, struct gguf_view *ret);
void gguf_unmap(struct gguf_view *v);
/* Values of one block and its bytes, for the types above; 0 for a type that isn't supported. */
uint32_t ggml_block_values(uint32_t type);
uint32_t ggml_block_bytes(uint32_t type);
const char *ggml_type_name(uint32_t type); /* also of known types that aren't supported */

/* 64 hex digits and a NUL: architecture and its keys, tensor list, sampled bytes of every tensor,
 * rope parameters, tokeniser. The same for every process that opens the same model. */
int gguf_fingerprint(const struct gguf *g, char ret[65]);

#endif
