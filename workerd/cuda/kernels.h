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

#include "proto/link_shm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CUDA_BLOCK = 32,     /* values that share a scale, of weights and of activations */
    CUDA_PIECE = 64,     /* values of two such blocks: what rows of codes are padded to */
    CUDA_TILE = 32,      /* outputs of a product's tile: one block of what it makes */
    CUDA_RANGES = 8,     /* of a product's k: summed apart, then joined in order */
    CUDA_X_ROWS = 8,     /* token rows whose codes lie together */
    CUDA_X_WHOLE = 32,   /* a buffer's rows are a multiple: of those missing, scales are read */
    CUDA_X_SCALES = 512, /* in a piece of eight rows: codes, then scales, then sums */
    CUDA_X_SUMS = 576,
    CUDA_X_BYTES = 640,
    CUDA_HALVES_ROWS = 128,   /* token rows whose halves lie together */
    CUDA_WIDTH_MAX = 1 << 16, /* values of a row: norm keeps a sum of each block in shared memory */
    CUDA_UNIT_CELLS = 16,     /* cells that surely lie in one block */
    CUDA_SPLIT_CELLS = 256,   /* cells whose attention is summed by itself, at fixed positions */
    CUDA_FLASH_CELLS = 128,   /* likewise with tensor cores */
    CUDA_FLASH_STRETCH = 8,   /* parts that join by themselves */
    CUDA_FLASH_DIM = 128,     /* heads of at most so many values have tiles of token rows */
    CUDA_FLASH_ROWS = 128,    /* (token row, query head) of such a tile */
    CUDA_HEAD_DIM_MAX = 256,
    CUDA_PART = 4096, /* logits of a row that a block of threads looks at */
    CUDA_BINS = 512,  /* how far below the largest they lie, in sixteenths */
    CUDA_LIST = 1024, /* of a row: those that are sorted */
    CUDA_NOT_RESIDENT = -1,
};

/* A quantised matrix is repacked when it is loaded, into pieces of 16 outputs by 64 k,
 * [outputs / 16][k / 64][bytes], padded with zeros to whole tiles and pieces. Of 4 bits they are
 * the fragments of mma.m16n8k32's A, where lane l has the outputs l / 4 and l / 4 + 8, and k
 * 4 (l % 4) to + 3, and the same from 16 on; of 8 bits the matrices of eight rows by 16 bytes that
 * ldmatrix makes fragments of.
 *   Q8_0  of each half of the outputs: codes [block][k half][output][16], then scales f16
 *         [output][block]
 *   Q4_0  codes [lane][block][output half][4]: low nibbles k 0-15, high nibbles k 16-31; scales
 *         f16 [l / 4][block][output half]
 *   Q4_1  likewise; scales d, then as many m
 *   F16, F32  [row][n_in] */
enum cuda_pack { CUDA_Q4_0, CUDA_Q4_1, CUDA_Q8_0, CUDA_F16, CUDA_F32 };

enum {
    CUDA_Q4_0_BYTES = 512 + 64,
    CUDA_Q4_1_BYTES = 512 + 128,
    CUDA_Q8_0_HALF = 512 + 32,
    CUDA_Q8_0_BYTES = 2 * CUDA_Q8_0_HALF
};
/* Of a piece. A macro, since kernels ask for it both as a constant and for a type that they are
 * told. */
#define CUDA_PIECE_BYTES(pack)                                                                     \
    ((pack) == CUDA_Q8_0   ? CUDA_Q8_0_BYTES                                                       \
     : (pack) == CUDA_Q4_1 ? CUDA_Q4_1_BYTES                                                       \
                           : CUDA_Q4_0_BYTES)

/* Multiplied as they are, with float32 values; the others as codes. */
static inline bool cuda_is_float(uint32_t pack) { return pack == CUDA_F16 || pack == CUDA_F32; }

struct cuda_matrix {
    const void *codes;
    uint32_t n_out, n_in;
};

/* Rows of activations: float32, and int8 codes in pieces of eight rows by 64 k,
 * [rows / 8][k / 64][CUDA_X_BYTES]: matrices of eight rows by 16 bytes, which
 * ldmatrix makes fragments of mma's B of:
 *   codes [block][k half][row][16], scales f32 [row / 2][block][row % 2], sums of the codes int32
 *   likewise
 * and halves of prompts' rows, counted from the window's first such row, where those have an
 * arithmetic of their own (halves.cu): [row / 128][k / 64][row % 128][64], as wgmma reads rows of
 * 128 bytes, swizzled (sixteen bytes c lie at c ^ row % 8); of sixteen k in the order in which a
 * lane finds codes of weights: 0 1 4 5 8 9 12 13, then 2 3 6 7 10 11 14 15. Rows that no matrix
 * multiplies have float32 values alone. */
struct cuda_rows {
    float *f;
    int8_t *q;
    uint8_t *h;
    float *squares; /* [row][width / 32]: of codes made before the norm's divisor is known */
    uint32_t width, k_pad;
};

/* A token row of the window. */
struct cuda_row {
    uint32_t token; /* or CUDA_TOKEN_FED | a row of the last sample, or CUDA_TOKEN_LATE */
    uint32_t pos, lane, pad_;
};
#define CUDA_TOKEN_FED UINT32_C(0x80000000)
#define CUDA_TOKEN_LATE UINT32_C(0x40000000) /* it is in struct cuda_lookup's late */

/* An entry of a lane's table: where the chunk is in host memory, and its place in GPU memory or
 * CUDA_NOT_RESIDENT. Places from n_slots on are of this window and layer (passing.c). */
struct cuda_entry {
    uint32_t chunk;
    int32_t slot;
};

/* The K/V of one layer; proto/kv_block.h says what a block holds (K by cell). */
struct cuda_kv {
    const struct cuda_row *rows;
    const struct cuda_entry *tables; /* [lane][table_room] */
    const float *rope;               /* [row][rope_dims / 2][2]: cos, sin */
    uint8_t *host, *resident;        /* [chunk or slot][block] */
    uint8_t *passing;                /* [slot - n_slots][block] */
    float *fresh; /* [row][K, V][kv head][head_dim]; of formats of 8 bits and less,
                     until they are rounded */
    uint64_t chunk_bytes, block_bytes, v_off, k_scale_off, v_scale_off;
    uint32_t table_room, chunk_shift, block_shift; /* logarithms of the cells of each */
    uint32_t n_slots, pad_;
    uint32_t n_heads, n_kv_heads, head_dim, rope_dims;
    uint32_t k_bits, v_bits, n_groups; /* of a value; scales of a head */
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
    uint32_t many;           /* the card can do many.cu; else few.cu does it all */
    uint32_t halves;         /* these are prompts' rows: halves.cu */
    uint32_t first_row;      /* with it: of the window, x's halves begin with */
    uint32_t floats;         /* with it: CUDA_GATE's float32 values are wanted, too */
    uint32_t multiprocessors;
    uint32_t deep_tiles; /* few.cu has a longer ring for at most so many: multiprocessors, or 0 */
    uint32_t scaled;     /* x's codes are of x w, to be divided by the root of its mean square */
    float eps;           /* of that */
    struct cuda_rows x, y;
    const float *norm; /* CUDA_ADD: w of the norm that follows, whose codes go to z; or NULL */
    struct cuda_rows z;
    struct cuda_kv kv;
};

struct cuda_norm {
    struct cuda_rows x, y; /* y's codes are of x w: struct cuda_product's scaled */
    const float *w;
    float eps;
    uint32_t halves; /* not codes, but y's halves; its first row is first_row */
    uint32_t floats; /* y's float32 values, too */
    uint32_t first_row, n_rows, dependent;
};

struct cuda_quantise { /* x's codes of its float32 values */
    struct cuda_rows x;
    uint32_t n_rows;
};

struct cuda_halve { /* x's halves of them */
    struct cuda_rows x;
    uint32_t first_row, n_rows, dependent;
};

/* Token rows of one lane, of consecutive positions. */
struct cuda_span {
    uint32_t first_row, n_rows;
};

/* How tiles are computed, with the same bits. A card that can do one can do those before it. */
enum cuda_tiles {
    CUDA_TILES_NEAR,   /* K of the next cells comes while V is multiplied */
    CUDA_TILES_DEEP,   /* there is room for all of the next cells in shared memory */
    CUDA_TILES_GROUPS, /* groups.cu */
};

struct cuda_attend {
    struct cuda_kv kv;
    struct cuda_rows q, y;
    const struct cuda_span *spans; /* of cuda_launch_flash_tiles */
    const uint32_t *listed;        /* rows of cuda_launch_flash; NULL: all */
    uint32_t first_row, n_rows;    /* in turns, as many as the partial sums hold; spans, if so */
    uint32_t n_splits;             /* at least what the longest of the rows needs */
    float scale;
    float *ml, *o; /* [row][head][n][2]: largest score, sum; [row][head][n][head_dim]; n: n_splits,
                      divided by together where that is more than 1 */
    uint32_t dependent, quantise;
    /* Of cuda_launch_flash. keep: K and V of 8 bits are still in fresh; only where alone. */
    uint32_t together; /* parts that one block of threads has: 1 or CUDA_FLASH_STRETCH */
    uint32_t alone;    /* each row is of a lane of its own */
    uint32_t keep;
    /* Of cuda_launch_flash_tiles; ml and o are [span][kv head][CUDA_FLASH_ROWS][stretches]. */
    uint32_t stretches; /* at least what the longest of the spans needs */
    uint32_t each;      /* of them one block of threads has so many; 0: all, without ml and o */
    enum cuda_tiles tiles;
};

struct cuda_keep { /* K and V of the window's rows from fresh to their cells */
    struct cuda_kv kv;
    uint32_t n_rows, dependent;
};

struct cuda_lookup {
    const struct cuda_row *rows;
    const uint32_t *chosen; /* of the last sample */
    const uint32_t *late;   /* [row], in pinned memory: written before the launch */
    const void *table;      /* ggml's blocks, as in the file */
    uint32_t type, n_out, n_rows;
    struct cuda_rows y;
};

/* Where a window's activations are, and go to: a slot of this card's inbox, and of the next one's.
 * Read from a fixed address, since a graph's arguments stay. */
struct cuda_ways {
    const float *in;
    float *out;
};

struct cuda_carry { /* x's rows from in, or to out */
    const struct cuda_ways *ways;
    float *x;
    uint32_t n_quads; /* of four values; they begin on 16 bytes */
    uint32_t out, dependent;
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
    uint32_t n_rows, dependent;
};

struct cuda_argmax {
    struct cuda_rows x;
    uint32_t n_rows, n_vocab;
    uint32_t *token, *host_token; /* [row]: the same, on the device and in pinned memory */
    uint32_t dependent;
};

/* struct sampler_row as the device has it. Biases (id, bits of what is added) and ids lie in words.
 */
struct cuda_choice {
    float temperature, top_p, min_p, repeat, presence, frequency;
    uint64_t seed;
    uint32_t top_k, pos;
    uint32_t first_bias, n_biases, first_past, n_past; /* in words */
    uint32_t n_repeat, n_counted; /* of the last ids, so many are looked at; 0: off */
    uint32_t chooses, probs;      /* what is asked */
    uint32_t of, n_top;
};

struct cuda_extreme { /* of a part of a row */
    float most;
    uint32_t at;     /* its first id; UINT32_MAX: no logit is a number */
    uint32_t number; /* the first id whose logit is one, or UINT32_MAX */
    uint32_t nan;    /* whether one is none */
};

/* What is asked of a row: a choice of a token, probabilities of tokens. */
enum cuda_task { CUDA_CHOICE, CUDA_PROBS, CUDA_TASKS };

struct cuda_sample {
    struct cuda_rows x;
    const struct cuda_choice *choices; /* [row] */
    const uint32_t *words;
    float *adjusted;               /* [row][n_vocab] */
    struct cuda_extreme *extremes; /* [row][task][part] */
    uint64_t *sums;                /* [row][task][part]: masses */
    uint32_t *bins;                /* [row][task][CUDA_BINS] */
    uint32_t *listed;              /* [row][task] */
    uint64_t *list;                /* [row][task][CUDA_LIST] */
    uint32_t *token, *host_token;  /* of struct cuda_argmax */
    struct link_probs *probs;      /* [row], in pinned memory */
    uint32_t n_rows, n_vocab, dependent, overlaps;
};

struct cuda_repack {
    const void *from; /* ggml's blocks */
    uint32_t type;    /* enum ggml_type */
    uint32_t pack, n_out, n_in;
    uint32_t first; /* of the matrix's rows that `from` begins with */
    void *codes;    /* the whole matrix */
};

cudaError_t cuda_launch_product(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_norm(cudaStream_t s, const struct cuda_norm *a);
cudaError_t cuda_launch_quantise(cudaStream_t s, const struct cuda_quantise *a);
cudaError_t cuda_launch_halve(cudaStream_t s, const struct cuda_halve *a);
cudaError_t cuda_launch_attend(cudaStream_t s, const struct cuda_attend *a);
/* The same with tensor cores, for K/V of 16 bits and less: single rows, and spans of at most
 * CUDA_FLASH_ROWS / (query heads of a K/V head) rows. */
cudaError_t cuda_launch_flash(cudaStream_t s, const struct cuda_attend *a);
cudaError_t cuda_launch_flash_tiles(cudaStream_t s, const struct cuda_attend *a);
cudaError_t cuda_launch_join(cudaStream_t s, const struct cuda_attend *a); /* of _flash */
cudaError_t cuda_launch_keep(cudaStream_t s, const struct cuda_keep *a);
cudaError_t cuda_launch_lookup(cudaStream_t s, const struct cuda_lookup *a);
cudaError_t cuda_launch_carry(cudaStream_t s, const struct cuda_carry *a);
cudaError_t cuda_launch_turn(cudaStream_t s, const struct cuda_turn *a);
cudaError_t cuda_launch_pick(cudaStream_t s, const struct cuda_pick *a);
cudaError_t cuda_launch_argmax(cudaStream_t s, const struct cuda_argmax *a);
cudaError_t cuda_launch_sample(cudaStream_t s, const struct cuda_sample *a);
cudaError_t cuda_launch_repack(cudaStream_t s, const struct cuda_repack *a);
/* What a card can do of products. */
struct cuda_product_ways {
    bool many;     /* many.cu */
    bool halves;   /* prompts' rows have an arithmetic of their own: halves.cu */
    bool deep;     /* there is room for few.cu's longer ring */
    bool overlaps; /* the kernels are of sm_90: one may begin while the one before it ends, and
                      waits for what it depends on itself */
};

/* Once a device, before the first launch. *dim_max: the longest heads of cuda_launch_flash. */
cudaError_t cuda_product_prepare(struct cuda_product_ways *ret);
cudaError_t cuda_flash_prepare(uint32_t *dim_max);
cudaError_t cuda_tiles_prepare(enum cuda_tiles *best);

#ifdef CISTERN_DEATH_POINTS
/* An error that sticks: no call of this process succeeds after it. */
cudaError_t cuda_launch_trap(cudaStream_t s);
#endif

/* Parts of cuda_launch_product. */
cudaError_t cuda_launch_few(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_many(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_halves(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_floats(cudaStream_t s, const struct cuda_product *a);
cudaError_t cuda_launch_choose(cudaStream_t s, const struct cuda_sample *a); /* of _sample */
cudaError_t cuda_few_prepare(bool *deep);
cudaError_t cuda_many_prepare(bool *there);
bool cuda_halves_prepare(void); /* whether the card can do it */

#ifdef __cplusplus
}
#endif
#endif
