/* SPDX-License-Identifier: MIT */
/*
 * Repacking at load, once a weight, and the look-up of single rows (the embedding).
 * Block layouts: ggml's, as in tests/data/README.md.
 */
#include "workerd/cpu/repack.h"

#include <string.h>

#include "workerd/cpu/f16.h"

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static void dequantise_q4(const uint8_t *b, bool has_min, uint32_t n, float *ret)
{
    for (uint32_t i = 0; i < n; i += QBLOCK) {
        float d = f16_to_f32(u16_at(b)), m = has_min ? f16_to_f32(u16_at(b + 2)) : 0;
        b += has_min ? 4 : 2;
        for (uint32_t j = 0; j < QBLOCK / 2; j++, b++) {
            int low = *b & 15, high = *b >> 4;
            ret[i + j] = has_min ? d * (float)low + m : d * (float)(low - 8);
            ret[i + j + QBLOCK / 2] = has_min ? d * (float)high + m : d * (float)(high - 8);
        }
    }
}

static void dequantise_q8(const uint8_t *b, uint32_t n, float *ret)
{
    for (uint32_t i = 0; i < n; i += QBLOCK, b += 2 + QBLOCK) {
        float d = f16_to_f32(u16_at(b));
        for (uint32_t j = 0; j < QBLOCK; j++)
            ret[i + j] = d * (float)(int8_t)b[2 + j];
    }
}

void cpu_dequantise(uint32_t type, const void *row, uint32_t n, float *ret)
{
    switch (type) {
    case GGML_Q4_0:
        dequantise_q4(row, false, n, ret);
        break;
    case GGML_Q4_1:
        dequantise_q4(row, true, n, ret);
        break;
    case GGML_Q8_0:
        dequantise_q8(row, n, ret);
        break;
    case GGML_F16:
        for (uint32_t i = 0; i < n; i++)
            ret[i] = f16_to_f32(u16_at((const uint8_t *)row + 2 * (size_t)i));
        break;
    default:
        memcpy(ret, row, n * sizeof(float));
        break;
    }
}

enum cpu_pack cpu_pack_of(uint32_t type, bool float32)
{
    switch (type) {
    case GGML_F32:
        return PACK_F32;
    case GGML_F16:
        return float32 ? PACK_F32 : PACK_F16;
    case GGML_Q4_0:
        return float32 ? PACK_F32 : PACK_Q4_0;
    case GGML_Q4_1:
        return float32 ? PACK_F32 : PACK_Q4_1;
    case GGML_Q8_0:
        return float32 ? PACK_F32 : PACK_Q8_0;
    default:
        return PACK_NONE;
    }
}

size_t cpu_tile_bytes(enum cpu_pack pack, uint32_t n_in)
{
    size_t blocks = n_in / QBLOCK;
    switch (pack) {
    case PACK_Q4_0:
        return blocks * (2 * TILE + TILE * QBLOCK / 2);
    case PACK_Q4_1:
        return blocks * (4 * TILE + TILE * QBLOCK / 2);
    case PACK_Q8_0:
        return blocks * (2 * TILE + TILE * QBLOCK);
    case PACK_F16:
        return (size_t)n_in * TILE * 2;
    default:
        return (size_t)n_in * TILE * sizeof(float);
    }
}

/* One output of a tile whose blocks are n_scales f16 scales and then codes of four bytes a lane: a
 * lane's four bytes are four consecutive bytes of the file's block, so the codes move as they are.
 */
static void repack_codes(const uint8_t *from, uint32_t n_blocks, size_t n_scales, size_t code_bytes,
                         uint32_t lane, uint8_t *tile)
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        for (size_t s = 0; s < n_scales; s++, from += 2, tile += (size_t)2 * TILE)
            memcpy(tile + (size_t)2 * lane, from, 2);
        for (size_t g = 0; g < code_bytes; g += 4, from += 4, tile += (size_t)4 * TILE)
            memcpy(tile + (size_t)4 * lane, from, 4);
    }
}

static void repack_floats(const struct backend_tensor *t, const uint8_t *row, uint32_t lane,
                          float *scratch, float *tile)
{
    cpu_dequantise(t->type, row, t->n_in, scratch);
    for (uint32_t k = 0; k < t->n_in; k++)
        tile[(size_t)k * TILE + lane] = scratch[k];
}

static void repack_f16(const uint8_t *row, uint32_t n, uint32_t lane, uint8_t *tile)
{
    for (size_t k = 0; k < n; k++)
        memcpy(tile + 2 * (k * TILE + lane), row + 2 * k, 2);
}

void cpu_repack_tile(enum cpu_pack pack, const struct backend_tensor *t, uint32_t tile,
                     float *scratch, uint8_t *ret)
{
    uint32_t first = tile * TILE, end = min_u32(first + TILE, t->n_out), blocks = t->n_in / QBLOCK;
    size_t row_bytes = (size_t)t->n_in / ggml_block_values(t->type) * ggml_block_bytes(t->type);
    for (uint32_t o = first; o < end; o++) {
        const uint8_t *row = (const uint8_t *)t->data + o * row_bytes;
        switch (pack) {
        case PACK_Q4_0:
            repack_codes(row, blocks, 1, QBLOCK / 2, o - first, ret);
            break;
        case PACK_Q4_1:
            repack_codes(row, blocks, 2, QBLOCK / 2, o - first, ret);
            break;
        case PACK_Q8_0:
            repack_codes(row, blocks, 1, QBLOCK, o - first, ret);
            break;
        case PACK_F16:
            repack_f16(row, t->n_in, o - first, ret);
            break;
        default:
            repack_floats(t, row, o - first, scratch, (float *)ret);
            break;
        }
    }
}
