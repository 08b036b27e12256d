/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_LIST_H
#define WORKERD_CUDA_LIST_H
/*
 * An entry of the list of operations: what operations.c adds and list.c launches. Nothing else
 * reads it.
 */
#include "workerd/cuda/cuda.h"

enum cuda_op_kind {
    CUDA_OP_TURN,
    CUDA_OP_LOOKUP,
    CUDA_OP_LOAD,
    CUDA_OP_STORE,
    CUDA_OP_NORM,
    CUDA_OP_QUANTISE,
    CUDA_OP_HALVE,
    CUDA_OP_PRODUCT,
    CUDA_OP_KEEP,
    CUDA_OP_CARRY,
    CUDA_OP_PASS,
    CUDA_OP_ATTEND,
    CUDA_OP_FLASH,
    CUDA_OP_FLASH_TILES,
    CUDA_OP_PICK,
    CUDA_OP_ARGMAX,
    CUDA_OP_SAMPLE,
};

struct cuda_rows_copy {
    float *host, *device;
    uint64_t bytes;
};

struct cuda_op { /* zeroed before it is filled: lists are compared by their bytes */
    uint32_t kind, pad_;
    union {
        struct cuda_turn turn;
        struct cuda_lookup lookup;
        struct cuda_rows_copy copy;
        struct cuda_norm norm;
        struct cuda_quantise quantise;
        struct cuda_halve halve;
        struct cuda_product product;
        struct cuda_keep keep;
        struct cuda_carry carry;
        uint32_t layer; /* of CUDA_OP_PASS */
        struct cuda_attend attend;
        struct cuda_pick pick;
        struct cuda_argmax argmax;
        struct cuda_sample sample;
    };
};

/* A zeroed entry of this kind at the list's end. A list that is full is refused (-ENOBUFS), and
 * what is filled is no entry of it. */
struct cuda_op *cuda_op_add(struct backend *b, enum cuda_op_kind kind);
/* The last entry (0), the one before (1); NULL when there are not so many. */
struct cuda_op *cuda_op_back(const struct backend *b, uint32_t n);

#endif
