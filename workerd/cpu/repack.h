/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CPU_REPACK_H
#define WORKERD_CPU_REPACK_H
/*
 * From a model file's blocks to the tiles that the kernels read (enum cpu_pack in cpu.h), and to
 * float32.
 */
#include "common/gguf.h"
#include "workerd/cpu/cpu.h"

/* Values of a row, in ggml's layout of the type, as float32. n is a multiple of the type's block.
 */
void cpu_dequantise(uint32_t type, const void *row, uint32_t n, float *ret);

/* PACK_NONE for a type that isn't multiplied. */
enum cpu_pack cpu_pack_of(uint32_t type, bool float32);
size_t cpu_tile_bytes(enum cpu_pack pack, uint32_t n_in);
/* Fills one tile, zeroed before. scratch: n_in floats. */
void cpu_repack_tile(enum cpu_pack pack, const struct backend_tensor *t, uint32_t tile,
                     float *scratch, uint8_t *ret);

#endif
