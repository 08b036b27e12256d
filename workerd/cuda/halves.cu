/* SPDX-License-Identifier: MIT */
/*
 * y = W x for the token rows of prompts by halves, where the tensor cores work for warpgroups (code
 * of sm_90a). An element is one sum over k in order, sixteen at a time (wgmma m64nNk16, float32
 * sums), of products of halves: x rounded to half, and the weight's code times its scale (Q4_1:
 * plus its minimum, in one rounding) rounded to half. The tile that it is in makes no difference.
 *
 * A block of threads makes 64 outputs (of two matrices: 32 of each) a warpgroup, of up to 128 token
 * rows. A warp makes halves of its 16 outputs' codes in the registers that wgmma reads A from,
 * sixteen k at a time, while the sixteen before are multiplied. Four more warps bring the pieces:
 * weights by copies of 16 bytes, rows by one bulk copy a piece.
 */
#include "workerd/cuda/product.cuh"
#include "workerd/cuda/warpgroup.cuh"

enum {
    GROUP_THREADS = 128,
    GROUP_OUTS = 64,
    FEEDERS = 128, /* threads that bring pieces, behind those that multiply */
    FEED_WARPS = FEEDERS / WARP,
    ROW_BYTES = CUDA_PIECE * 2, /* of a piece */
    FEW = 32,                   /* token rows of a block */
    SOME = 64,
    MANY = 128,
    /* Of 96 a thread, which five warps of a scheduler's registers leave each. */
    FEED_REGISTERS = 32,
    SUM_REGISTERS = 112,
    BARRIER = 1, /* of those that multiply */
};

/* PACK: of the weights; G: warpgroups that multiply; N: token rows. */
template <int PACK, int G, int N> struct shape {
    static const int ROWS = N, ROWS_BYTES = ROWS * ROW_BYTES;
    static const int SUMS = ROWS / 8; /* of a thread, in fours */
    static const int THREADS = G * GROUP_THREADS, OUTS = G * GROUP_OUTS, TILES = OUTS / 16;
    static const int WEIGHTS_BYTES = TILES * piece<PACK>::bytes;
    static const int SLOT_BYTES =
        (ROWS_BYTES + WEIGHTS_BYTES + SWIZZLE_BYTES - 1) / SWIZZLE_BYTES * SWIZZLE_BYTES;
    /* Of few rows two blocks share a multiprocessor. */
    static const int SLOTS = G == 4 ? 6 : N == FEW ? 12 : 8;
    /* Fragments of sixteen k that are made together, as many as there are registers for: making
     * them takes a warp longer alone than wgmma takes to multiply them. */
    static const int AT_ONCE = G == 4 ? 1 : 4;
    /* Shared memory: the slots, then their phases. */
    static const int PHASES = SLOTS * SLOT_BYTES, bytes = PHASES + 2 * SLOTS * 8;
    static_assert(ROWS * tile_sums<OUTS>::STRIDE * 4 <= PHASES, "sums lie where pieces lay");
};

#ifdef WARPGROUPS

struct ring {
    uint8_t *at;
    uint64_t *full, *empty; /* [SLOTS] */
};

/* Where a warp is in the ring: which slot, and the parity of its phase. */
template <int SLOTS> struct turn_of {
    uint32_t slot, parity;

    __device__ __forceinline__ void next()
    {
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        if (slot == 0) parity ^= 1;
    }
};

/* ---- bringing ---- */

/* Of one warp of the feeders: every fourth of the block's tiles of 16 outputs. */
template <int PACK, int M, int G, int N> struct feeder {
    static const int TILES = shape<PACK, G, N>::TILES, EACH = TILES / FEED_WARPS,
                     BYTES = piece<PACK>::bytes;
    const uint8_t *from[EACH];
    uint32_t at;
    int lane;

    __device__ __forceinline__ feeder(const cuda_product &a, const tile_place &p, int warp, int l)
        : at(shape<PACK, G, N>::ROWS_BYTES + warp * BYTES + l * 16), lane(l)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            from[i] = weights_of<PACK>(a, p, warp + i * FEED_WARPS, TILES / M) + l * 16;
    }
    __device__ __forceinline__ void ask(uint8_t *slot, uint64_t *full)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int b = 0; b < BYTES; b += WARP * 16)
                if (b + WARP * 16 <= BYTES || b + lane * 16 < BYTES)
                    copy16(slot + at + i * FEED_WARPS * BYTES + b, from[i] + b);
            from[i] += BYTES;
        }
        copies_arrive(full);
    }
};

template <int PACK, int M, int G, int N>
__device__ __forceinline__ void tile_feed(const cuda_product &a, const tile_place &place,
                                          uint32_t row0, const ring &r, int warp, int lane)
{
    typedef shape<PACK, G, N> shape;
    const uint32_t n = a.x.k_pad / CUDA_PIECE, n_rows = min(a.n_rows - row0, (uint32_t)N);
    const uint32_t bytes = (n_rows + 7) / 8 * SWIZZLE_BYTES;
    const uint8_t *rows = a.x.h + ((uint64_t)(row0 / CUDA_HALVES_ROWS) * n * CUDA_HALVES_ROWS +
                                   row0 % CUDA_HALVES_ROWS) *
                                      ROW_BYTES;
    const bool brings_rows = warp == 0 && lane == 0;
    feeder<PACK, M, G, N> f(a, place, warp, lane);
    for (uint32_t i = 0; i < min(n, (uint32_t)shape::SLOTS); i++)
        f.ask(r.at + i * shape::SLOT_BYTES, &r.full[i]);
    dependency_wait();
    turn_of<shape::SLOTS> turn = {0, 1};
    for (uint32_t i = 0; i < n; i++, turn.next()) {
        uint8_t *slot = r.at + turn.slot * shape::SLOT_BYTES;
        if (i >= shape::SLOTS) {
            phase_wait(&r.empty[turn.slot], turn.parity);
            f.ask(slot, &r.full[turn.slot]);
        }
        if (brings_rows)
            copy_bulk(slot, rows + (uint64_t)i * CUDA_HALVES_ROWS * ROW_BYTES, bytes,
                      &r.full[turn.slot]);
    }
}

/* ---- multiplying ---- */

/* A lane's codes of 16 outputs by 32 k, as product.cuh's, and its two outputs' scales. */
template <int PACK> struct block_codes {
    uint32_t w[2], more[2]; /* [output half]: k 4 (l % 4) to + 3, and from 16 on; of four bits in
                               one */
    __half2 d[2], m[2];

    __device__ __forceinline__ void read(const uint8_t *at, int b, int lane)
    {
        if (PACK == CUDA_Q8_0) {
            uint32_t v[4];
            load_matrices(v, at + lane / 8 % 2 * CUDA_Q8_0_HALF + b * 256 + lane / 16 * 128 +
                                 lane % 8 * 16);
            w[0] = v[0], w[1] = v[1], more[0] = v[2], more[1] = v[3];
#pragma unroll
            for (int i = 0; i < 2; i++)
                d[i] = twice(at + i * CUDA_Q8_0_HALF + 512 + lane / 4 * 4 + b * 2);
        } else {
            const uint2 v = *(const uint2 *)(at + lane * 16 + b * 8);
            w[0] = v.x, w[1] = v.y;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint8_t *scale = at + 512 + lane / 4 * 8 + b * 4 + i * 2;
                d[i] = twice(scale);
                if (PACK == CUDA_Q4_1) m[i] = twice(scale + 64);
            }
        }
    }
    __device__ __forceinline__ static __half2 twice(const uint8_t *at)
    {
        return __half2half2(*(const __half *)at);
    }

    /* A's fragment of 16 k (`half` of the 32), in the order of k that halves_write has. */
    __device__ __forceinline__ void fragment(int half, uint32_t a[4]) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t v = PACK == CUDA_Q8_0 ? (half ? more[i] : w[i]) ^ 0x80808080
                                           : w[i] >> 4 * half & 0x0f0f0f0f;
            a[i] = values(v, 0x4140, i);
            a[2 + i] = values(v, 0x4342, i);
        }
    }
    /* Two of four bytes: 1024 + byte is a half whose last bits are the byte. */
    __device__ __forceinline__ uint32_t values(uint32_t bytes, uint32_t which, int i) const
    {
        const float base = 1024 + (PACK == CUDA_Q8_0 ? 128 : PACK == CUDA_Q4_0 ? 8 : 0);
        const uint32_t sum = __byte_perm(bytes, 0x64646464, which);
        const __half2 code = __hsub2(*(const __half2 *)&sum, __float2half2_rn(base));
        const __half2 v = PACK == CUDA_Q4_1 ? __hfma2(code, d[i], m[i]) : __hmul2(code, d[i]);
        return *(const uint32_t *)&v;
    }
};

/* A warp's part of a piece: PARITY'th of the fragments that may be multiplied while others are
 * made. before: the slot of the piece before, which is free once its products are done. */
template <int PACK, int G, int N, int PARITY>
__device__ __forceinline__ void
piece_sum(const uint8_t *weights, uint64_t rows, bool first, uint64_t *before, int lane,
          uint32_t a[2][shape<PACK, G, N>::AT_ONCE][4], float acc[N / 8][4])
{
    typedef shape<PACK, G, N> shape;
    const int at_once = shape::AT_ONCE;
    block_codes<PACK> codes;
#pragma unroll
    for (int i = 0; i < 4; i += at_once) {
        uint32_t(*now)[4] = a[(PARITY * 4 / at_once + i / at_once) % 2];
#pragma unroll
        for (int k = 0; k < at_once; k++) {
            if ((i + k) % 2 == 0) codes.read(weights, (i + k) / 2, lane);
            codes.fragment((i + k) % 2, now[k]);
        }
        group_begin();
#pragma unroll
        for (int k = 0; k < at_once; k++)
            group_product_along<shape::SUMS>(acc, now[k], rows + (i + k) * 2, first && i + k == 0);
        group_commit();
        group_wait_but_one();
        if (i == 0 && !first) phase_arrive(before);
    }
}

template <int PACK, int G, int N>
__device__ __forceinline__ void tile_sum(uint32_t n, const ring &r, int warp, int lane,
                                         float acc[N / 8][4])
{
    typedef shape<PACK, G, N> shape;
    const uint64_t rows = matrix_at(r.at, 0);
    const uint8_t *weights = r.at + shape::ROWS_BYTES + warp * piece<PACK>::bytes;
    turn_of<shape::SLOTS> now = {0, 0};
    uint32_t a[2][shape::AT_ONCE][4];
    uint64_t *before = r.empty;
    for (uint32_t i = 0; i < n; i += 2) {
        uint32_t slot = now.slot * shape::SLOT_BYTES;
        phase_wait(&r.full[now.slot], now.parity);
        piece_sum<PACK, G, N, 0>(weights + slot, rows + slot / 16, i == 0, before, lane, a, acc);
        before = &r.empty[now.slot];
        now.next();
        if (i + 1 == n) break;
        slot = now.slot * shape::SLOT_BYTES;
        phase_wait(&r.full[now.slot], now.parity);
        piece_sum<PACK, G, N, 1>(weights + slot, rows + slot / 16, false, before, lane, a, acc);
        before = &r.empty[now.slot];
        now.next();
    }
    group_wait<shape::SUMS>(acc);
}

/* ---- what follows ---- */

template <int PACK, int G, int N>
__device__ __forceinline__ void tile_write(float *out, int warp, int lane,
                                           const float acc[N / 8][4])
{
    const int stride = tile_sums<shape<PACK, G, N>::OUTS>::STRIDE, out0 = warp * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            out[(n * 8 + lane % 4 * 2 + k % 2) * stride + out0 + k / 2 * 8] = acc[n][k];
}

#endif

template <int PACK, int M, int G, int N>
__global__ void __launch_bounds__(G *GROUP_THREADS + FEEDERS, G == 1 ? 2 : 1)
    halves(const cuda_product a)
{
#ifdef WARPGROUPS
    typedef shape<PACK, G, N> shape;
    dependency_release();
    uint64_t *phases = (uint64_t *)(shared_memory() + shape::PHASES);
    const ring r = {shared_memory(), phases, phases + shape::SLOTS};
    const int warp = __shfl_sync(~0u, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP;
    const uint32_t row0 = blockIdx.x * N;
    const tile_place place = place_of(a, blockIdx.y, shape::OUTS / M);
    if (shared_address(r.at) % SWIZZLE_BYTES) __trap();
    if (threadIdx.x < shape::SLOTS) {
        phase_init(&r.full[threadIdx.x], FEEDERS + 1);
        phase_init(&r.empty[threadIdx.x], G * GROUP_THREADS);
        phases_publish();
    }
    __syncthreads();
    if (warp >= shape::THREADS / WARP) {
        if (G == 4) registers_give<FEED_REGISTERS>();
        tile_feed<PACK, M, G, N>(a, place, row0, r, warp - shape::THREADS / WARP, lane);
        return;
    }
    if (G == 4) registers_take<SUM_REGISTERS>();
    float acc[shape::SUMS][4];
    tile_sum<PACK, G, N>(a.x.k_pad / CUDA_PIECE, r, warp, lane, acc);
    dependency_wait();
    barrier_wait(BARRIER, shape::THREADS);
    float *out = (float *)r.at;
    tile_write<PACK, G, N>(out, warp, lane, acc);
    barrier_wait(BARRIER, shape::THREADS);
    const tile_sums<shape::OUTS> sums = {out, nullptr, row0, min(a.n_rows - row0, (uint32_t)N)};
    sums_follow<M, shape::OUTS, shape::THREADS, true>(a, place, sums);
#endif
}

/* ---- launching ---- */

template <int PACK, int M, int G, int N>
static cudaError_t launch_halves(cudaStream_t s, const cuda_product *a)
{
    typedef shape<PACK, G, N> shape;
    /* Token tiles go fastest: those of one weight tile run together and share it in the L2. */
    dim3 grid((a->n_rows + N - 1) / N, tiles_of(a, shape::OUTS / M));
    return launch(s, a->dependent, halves<PACK, M, G, N>, grid, shape::THREADS + FEEDERS,
                  shape::bytes, *a);
}

/* Time that the multiprocessors take, by rounds: `each` is a round's, in units of all shapes. */
static uint32_t time_of(const cuda_product *a, uint32_t outs, uint32_t each)
{
    const uint32_t blocks = (a->n_rows + MANY - 1) / MANY * tiles_of(a, outs);
    return (blocks + a->multiprocessors - 1) / a->multiprocessors * each;
}

template <int PACK, int M> static cudaError_t by_rows(cudaStream_t s, const cuda_product *a)
{
    const int outs = 2 * GROUP_OUTS / M;
    if (a->n_rows <= FEW) return launch_halves<PACK, M, 1, FEW>(s, a);
    if (a->n_rows <= SOME) return launch_halves<PACK, M, 1, SOME>(s, a);
    /* As measured: the smaller a tile, the more of the L2's reads it takes. */
    const uint32_t one = time_of(a, outs / 2, 3), two = time_of(a, outs, 4);
    const uint32_t four = time_of(a, outs * 2, 7);
    if (four <= min(one, two)) return launch_halves<PACK, M, 4, MANY>(s, a);
    return two <= one ? launch_halves<PACK, M, 2, MANY>(s, a)
                      : launch_halves<PACK, M, 1, MANY>(s, a);
}

extern "C" cudaError_t cuda_launch_halves(cudaStream_t s, const struct cuda_product *a)
{
    return products::of(a, [=](auto v) { return by_rows<v.pack, v.matrices>(s, a); });
}

template <int PACK, int M, int G, int N> static cudaError_t allow_shape()
{
    return allow_shared(halves<PACK, M, G, N>, shape<PACK, G, N>::bytes);
}

template <int PACK, int M> static cudaError_t allow_rows()
{
    cudaError_t e = allow_shape<PACK, M, 1, FEW>();
    if (!e) e = allow_shape<PACK, M, 1, SOME>();
    if (!e) e = allow_shape<PACK, M, 1, MANY>();
    if (!e) e = allow_shape<PACK, M, 2, MANY>();
    return e ? e : allow_shape<PACK, M, 4, MANY>();
}

extern "C" bool cuda_halves_prepare(void)
{
    cudaFuncAttributes of;
    cudaError_t e = cudaFuncGetAttributes(&of, halves<CUDA_Q8_0, 1, 4, MANY>);
    /* Of the code that was compiled: what the driver makes of older PTX is empty. */
    if (!e && of.ptxVersion != 90) return false;
    if (!e) e = products::all([](auto v) { return allow_rows<v.pack, v.matrices>(); });
    if (e) (void)cudaGetLastError();
    return e == cudaSuccess;
}
