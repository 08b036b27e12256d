/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_KERNELS_H
#define WORKERD_CUDA_KERNELS_H
/*
 * What the C side of the CUDA backend and its kernels share: the arguments of each kernel family
 * and its launcher. Read by C and by C++. A launcher enqueues on a stream and returns what CUDA
 * says; it never waits. All pointers are device addresses, K/V in host memory included (it is
 * registered, and read and written over PCIe).
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CUDA_BLOCK = 32,        /* values that share a scale, of weights and of activations */
    CUDA_GROUP = 256,       /* values of eight such blocks: what a row of codes is padded to */
    CUDA_TILE = 32,         /* outputs of a product's tile: one block of what it makes */
    CUDA_SPLIT_CELLS = 256, /* cells whose attention is summed by itself, at fixed positions */
    CUDA_HEAD_DIM_MAX = 256,
    CUDA_NOT_RESIDENT = -1,
};

/* A quantised matrix is repacked when it is loaded; its rows are padded with zeros to whole groups
 * of eight blocks, so that eight lanes read consecutive 16 bytes.
 *   Q8_0  codes [row][group][half][block][16]: half 0 holds k 0-15 of each block
 *         scales f16 [row][block]
 *   Q4_0  codes [row][block][16]: low nibbles k 0-15, high nibbles k 16-31; scales as Q8_0
 *   Q4_1  codes as Q4_0; scales f16 [row][block][2]: d, then m
 *   F16, F32  [row][n_in] */
enum cuda_pack { CUDA_Q4_0, CUDA_Q4_1, CUDA_Q8_0, CUDA_F16, CUDA_F32 };

struct cuda_matrix {
    const void *codes, *scales;
    uint32_t n_out, n_in;
};

/* Rows of activations: float32, and int8 codes in the layout of Q8_0 above with {scale, sum of the
 * codes} for each block. */
struct cuda_rows {
    float *f;
    int8_t *q;
    float *ds;
    uint32_t width, k_pad;
};

/* A token row of the window. */
struct cuda_row {
    uint32_t token, pos, lane, pad_;
};

/* An entry of a lane's table: where the chunk is in host memory, and its place in GPU memory or
 * CUDA_NOT_RESIDENT. */
struct cuda_entry {
    uint32_t chunk;
    int32_t slot;
};

/* The K/V of one layer. A block holds K [kv head][cell][head_dim], then V likewise. */
struct cuda_kv {
    const struct cuda_row *rows;
    const struct cuda_entry *tables; /* [lane][table_room] */
    const float *rope;               /* [row][rope_dims / 2][2]: cos, sin */
    uint8_t *host, *resident;        /* [chunk or slot][block] */
    uint64_t chunk_bytes, block_bytes, v_off;
    uint32_t table_room, chunk_shift, block_shift; /* logarithms of the cells of each */
    uint32_t n_heads, n_kv_heads, head_dim, rope_dims;
    uint32_t is_f32;
};

/* CUDA_GATE: silu(first product) * second; CUDA_GATED: the first one lies in y already, since the
 * two matrices are of different types. */
enum cuda_epilogue { CUDA_STORE, CUDA_ADD, CUDA_QKV, CUDA_GATE, CUDA_GATED };

struct cuda_product {
    uint32_t pack, epilogue; /* of all matrices */
    uint32_t n_rows, n_matrices;
    struct cuda_matrix m[3]; /* CUDA_GATE: gate, up */
    uint32_t part[3];        /* CUDA_QKV: 0 q, 1 k, 2 v */
    uint32_t dependent;      /* programmatic dependent launch */
    struct cuda_rows x, y;
    struct cuda_kv kv;
};

struct cuda_norm {
    struct cuda_rows x, y;
    const float *w;
    float eps;
    uint32_t n_rows, dependent;
};

struct cuda_attend {
    struct cuda_kv kv;
    struct cuda_rows q, y;
    uint32_t first_row, n_rows; /* a window's rows in turns, as many as the partial sums hold */
    uint32_t n_splits;          /* at least what the longest of the rows needs */
    float scale;
    float *ml, *o; /* [row][head][split][2]: largest score, sum; [row][head][split][head_dim] */
    uint32_t dependent, quantise;
};

struct cuda_lookup {
    const struct cuda_row *rows;
    const void *table; /* ggml's blocks, as in the file */
    uint32_t type, n_out, n_rows;
    struct cuda_rows y;
};

struct cuda_turn { /* cos and sin of the rows' positions */
    const struct cuda_row *rows;
    const double *freq;
    float *rope;
    uint32_t n_pairs, n_rows;
};

struct cuda_pick {
    struct cuda_rows x, y;
    const uint32_t *rows;
    uint32_t n_rows;
};

struct cuda_repack {
    const void *from; /* ggml's blocks */
    uint32_t type;    /* enum ggml_type */
    uint32_t pack, n_out, n_in;
    void *codes, *scales;
};

cudaError_t cuda_launch_product(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_norm(cudaStream_t s, const struct cuda_norm *a);
cudaError_t cuda_launch_quantise(cudaStream_t s, const struct cuda_rows *x, uint32_t n_rows);
cudaError_t cuda_launch_attend(cudaStream_t s, const struct cuda_attend *a);
cudaError_t cuda_launch_lookup(cudaStream_t s, const struct cuda_lookup *a);
cudaError_t cuda_launch_turn(cudaStream_t s, const struct cuda_turn *a);
cudaError_t cuda_launch_pick(cudaStream_t s, const struct cuda_pick *a);
cudaError_t cuda_launch_argmax(cudaStream_t s, const struct cuda_rows *x, uint32_t n_rows,
                               uint32_t n_vocab, uint32_t *token);
cudaError_t cuda_launch_repack(cudaStream_t s, const struct cuda_repack *a);
/* Once a device, before the first product. */
cudaError_t cuda_product_prepare(void);

/* Parts of cuda_launch_product. */
cudaError_t cuda_launch_few(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_many(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_floats(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_few_prepare(void);
cudaError_t cuda_many_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
