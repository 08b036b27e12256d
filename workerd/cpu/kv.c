/* SPDX-License-Identifier: MIT */
/*
 * K and V on their way into the arena where a format has scales: a group of one cell is rounded as
 * proto/kv_block.h says. Run by product.c, which has the values; attend.c reads them.
 */
#include "workerd/cpu/variant.h"

#include <string.h>

#include "workerd/cpu/f16.h"

#define SCALE_MAX 65504.0f /* the largest half */

/* The value that a half keeps of a scale, and what its group is multiplied by. */
struct scale {
    uint16_t half;
    float inverse;
};

static struct scale scale_of(float d)
{
    d = d > SCALE_MAX ? SCALE_MAX : d < -SCALE_MAX ? -SCALE_MAX : d;
    uint16_t half = f32_to_f16(d);
    float kept = f16_to_f32(half);
    return kept != 0 ? (struct scale){half, 1 / kept} : (struct scale){0};
}

static struct scale scale8(const float *x, uint32_t n)
{
    vf most = vf_set1(0);
    for (uint32_t i = 0; i < n; i += LANES)
        most = vf_max(vf_abs(vf_load(x + i)), most);
    return scale_of(vf_hmax(most) / 127);
}

static struct scale scale4(const float *x, uint32_t n)
{
    vf most = vf_load(x), least = most, zero = vf_set1(0);
    for (uint32_t i = LANES; i < n; i += LANES) {
        most = vf_max(vf_load(x + i), most);
        least = vf_min(vf_load(x + i), least);
    }
    float above = vf_hmax(most), below = vf_hmax(vf_sub(zero, least)); /* below: turned positive */
    return scale_of((above >= below ? above : -below) / -8);
}

/* Codes from `low` to `high`, plus `add`. */
static void codes(const float *x, uint32_t n, float inverse, float low, float high, float add,
                  uint8_t *ret)
{
    vf round = vf_set1(SIMD_ROUND), least = vf_set1(SIMD_ROUND + low),
       most = vf_set1(SIMD_ROUND + high);
    for (uint32_t i = 0; i < n; i += LANES) {
        vf t = vf_fma(vf_load(x + i), vf_set1(inverse), round);
        t = vf_add(vf_min(vf_max(t, least), most), vf_set1(add));
        vf_store_low8((int8_t *)ret + i, t);
    }
}

void KERNEL(keep)(const struct cpu_geometry *g, uint8_t *block, uint32_t cell,
                  const struct cpu_group *which, const float *x)
{
    uint8_t code[KV_GROUP];
    const struct kv_block *b = &g->block;
    uint32_t bits = which->is_v ? b->v_bits : b->k_bits, n = cpu_group_values(g, which->group);
    struct scale s = bits == 8 ? scale8(x, n) : scale4(x, n);
    if (bits == 8)
        codes(x, n, s.inverse, -127, 127, 0, code);
    else
        codes(x, n, s.inverse, -8, 7, 8, code);
    for (uint32_t i = 0; bits == 4 && i < n; i += 2)
        code[i / 2] = (uint8_t)(code[i] | code[i + 1] << 4);

    uint32_t bytes = n * bits / 8, head_bytes = g->head_dim * bits / 8;
    size_t before = (size_t)which->group * KV_GROUP * bits / 8;
    const struct kv_section *scales = which->is_v ? &b->v_scale : &b->k_scale;
    size_t line = (size_t)which->head * b->n_groups + which->group;
    memcpy(block + scales->off + (line * g->block_cells + cell) * sizeof(s.half), &s.half,
           sizeof(s.half));
    if (which->is_v) {
        size_t at = ((size_t)which->head * g->block_cells + cell) * head_bytes + before;
        memcpy(block + b->v.off + at, code, bytes);
        return;
    }
    uint8_t *to = block + b->k.off + (which->head * head_bytes + before) * g->block_cells + cell;
    for (uint32_t i = 0; i < bytes; i++)
        to[(size_t)i * g->block_cells] = code[i];
}
