/* SPDX-License-Identifier: MIT */
#ifndef COMMON_GGML_TYPE_H
#define COMMON_GGML_TYPE_H
/*
 * The tensor formats of GGUF files by number: name and size of every known one, so that a file with
 * a tensor that no backend computes can be read, and the tensor refused by name when it is loaded.
 * Used by the files of common/ that read GGUF; others use the functions of gguf.h.
 */
#include <stdbool.h>
#include <stdint.h>

struct ggml_format {
    const char *name;
    uint32_t block_values;
    uint32_t block_bytes;
    bool supported; /* the backends compute it: a row of enum ggml_type */
};

/* NULL for a number that no format has. */
const struct ggml_format *ggml_format(uint32_t type);

#endif
