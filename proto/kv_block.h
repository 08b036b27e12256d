/* SPDX-License-Identifier: MIT */
#ifndef PROTO_KV_BLOCK_H
#define PROTO_KV_BLOCK_H
/*
 * What a block of an arena holds in each format of `pool.kv`, and how K and V are rounded into it.
 * The one place for both: poold and poolctl take the sizes from here, every backend the offsets.
 *
 *   format  K, bits  V, bits  scales
 *   f32     32       32       none
 *   f16     16       16       none      values rounded to nearest even
 *   int8     8        8       f16, one for each group
 *   k8v4     8        4       f16, one for each group
 *   q4       4        4       f16, one for each group
 *
 * A group is KV_GROUP consecutive values of one K/V head of one cell, the last of a head as many as
 * are left: a head of 80 has groups of 64 and 16, one of 16 a group of 16. Scales are kept by
 * [K/V head][group][B cells].
 *
 * Four sections follow each other without gaps: K's codes, V's codes, K's scales, V's scales. With
 * heads of a multiple of 16 values and blocks of a multiple of 16 cells the codes begin at
 * multiples of 128 bytes in the block, the scales at multiples of 32, and a block is a multiple of
 * 64 long.
 *
 * A section is `lines` lines of B units, a unit being `unit_bytes` of one cell, so that whatever
 * copies some cells of a block needs to know no more. V, and K by cell (CUDA), have a line a head:
 * [K/V head][B cells][head_dim]. K by dimension (CPU) has a line a dimension:
 * [K/V head][head_dim][B cells], so that a vector's lanes are cells. Of 4-bit codes two of one cell
 * share a byte, dimension 2i in the low four bits and 2i + 1 in the high ones; K by dimension then
 * has a line for each such pair. So no two cells ever share a byte: each is written and copied by
 * itself.
 *
 * Rounding, in float32 to nearest even throughout; x are the group's values:
 *
 *   8 bits  d = f16(min(max |x| / 127, 65504)), r = d != 0 ? 1 / d : 0
 *           code = round(x r) limited to [-127, 127], kept as int8; it stands for d code
 *   4 bits  m = the x of largest |x|, of two such the positive one
 *           d = f16(m / -8 limited to +-65504), r = d != 0 ? 1 / d : 0
 *           code = round(x r) limited to [-8, 7], kept as code + 8; it stands for d code
 *
 * r is of the d that was rounded to f16; a d of 0 is kept as +0. round() is one rounding of the
 * exact product to the nearest integer, to even in the middle: fma(x, r, 1.5 * 2^23) has it in its
 * low bits.
 */
#include <stdint.h>

#include "proto/pool_shm.h"

enum {
    KV_GROUP = 64,
    KV_BLOCK_BYTES_MIN = 2048, /* over PCIe, gathers of smaller pieces are slow */
    KV_BLOCK_CELLS_MIN = 16,   /* the kernels take 16 cells at once */
};

enum kv_order { KV_BY_CELL, KV_BY_DIM }; /* of K: see above */

struct kv_section {
    uint64_t off; /* bytes from the block's beginning */
    uint32_t lines, unit_bytes;
};

struct kv_block {
    struct kv_section k, v, k_scale, v_scale; /* of the scales 0 lines when there are none */
    uint32_t k_bits, v_bits;
    uint32_t n_groups; /* of a head; 0: no scales */
    uint64_t bytes;
};

/* 0: no such format. */
static inline uint32_t kv_bits(uint32_t kv, int is_v)
{
    switch (kv) {
    case POOL_KV_F32:
        return 32;
    case POOL_KV_F16:
        return 16;
    case POOL_KV_INT8:
        return 8;
    case POOL_KV_K8V4:
        return is_v ? 4 : 8;
    case POOL_KV_Q4:
        return 4;
    default:
        return 0;
    }
}

static inline const char *kv_name(uint32_t kv)
{
    switch (kv) {
    case POOL_KV_F32:
        return "f32";
    case POOL_KV_F16:
        return "f16";
    case POOL_KV_INT8:
        return "int8";
    case POOL_KV_K8V4:
        return "k8v4";
    case POOL_KV_Q4:
        return "q4";
    default:
        return "unknown";
    }
}

static inline struct kv_section kv_section_after(uint64_t *end, uint32_t lines, uint32_t unit_bytes,
                                                 uint32_t block_cells)
{
    struct kv_section s;
    s.off = *end;
    s.lines = lines;
    s.unit_bytes = unit_bytes;
    *end += (uint64_t)lines * unit_bytes * block_cells;
    return s;
}

/* kv is one of enum pool_kv, head_dim even; nothing overflows with heads of up to 2^16 values, as
 * many of them and blocks of up to 2^16 cells. */
static inline struct kv_block kv_block_of(uint32_t kv, uint32_t n_kv_heads, uint32_t head_dim,
                                          uint32_t block_cells, enum kv_order order)
{
    struct kv_block b;
    uint64_t end = 0;
    b.k_bits = kv_bits(kv, 0);
    b.v_bits = kv_bits(kv, 1);
    b.n_groups = b.k_bits > 8 ? 0 : (head_dim + KV_GROUP - 1) / KV_GROUP;
    uint32_t k_head = head_dim * b.k_bits / 8, v_head = head_dim * b.v_bits / 8;
    uint32_t k_unit = order == KV_BY_CELL ? k_head : (b.k_bits + 7) / 8;
    b.k = kv_section_after(&end, n_kv_heads * (k_head / k_unit), k_unit, block_cells);
    b.v = kv_section_after(&end, n_kv_heads, v_head, block_cells);
    b.k_scale = kv_section_after(&end, n_kv_heads * b.n_groups, 2, block_cells);
    b.v_scale = kv_section_after(&end, n_kv_heads * b.n_groups, 2, block_cells);
    b.bytes = end;
    return b;
}

/* Cells of a block: the least power of two that meets both minima. */
static inline uint32_t kv_block_cells(uint32_t kv, uint32_t n_kv_heads, uint32_t head_dim)
{
    uint64_t cell = kv_block_of(kv, n_kv_heads, head_dim, 1, KV_BY_CELL).bytes;
    uint32_t cells = KV_BLOCK_CELLS_MIN;
    while (cells * cell < KV_BLOCK_BYTES_MIN && cells < KV_BLOCK_BYTES_MIN)
        cells *= 2;
    return cells;
}

#endif
