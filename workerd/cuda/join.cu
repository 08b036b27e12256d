/* SPDX-License-Identifier: MIT */
/*
 * What flash.cu's blocks of threads made of a row's cells, joined in the order of its parts, eight
 * by eight: a head's sum and values, divided at the end and quantised for the product that follows.
 */
#include "workerd/cuda/flash.cuh"

enum {
    JOIN_THREADS = 128,
    JOIN_PARTS = 64,  /* whose factors are made at once: two a lane of a warp */
    JOIN_HEADS = 512, /* of all rows, with which each warp has four values a lane */
};

/* What is joined is multiplied with: the sums so far, the new ones. */
struct join_factors {
    float old, fresh, sum, pad_; /* sum: the part's, multiplied already */
};
struct join_shared {
    join_factors part[JOIN_PARTS]; /* in its stretch */
    float2 stretch[JOIN_PARTS];
    float most; /* of all parts before */
};

/* The largest of the values of the lanes of a group of n up to this one. */
__device__ __forceinline__ float most_upto(float v, int lane, int n)
{
    for (int o = 1; o < n; o *= 2) {
        float before = __shfl_up_sync(~0u, v, o);
        if (lane % n >= o) v = fmaxf(v, before);
    }
    return v;
}

/* joint's factors for all of them at once, since the largest of several does not depend on their
 * order. By a warp; ml: this lane's two parts; per: parts of a stretch. */
__device__ __forceinline__ void factors_make(join_shared *s, int lane, const float2 ml[2], int per,
                                             float scale)
{
    const int n = per == 1 ? 1 : per / 2; /* lanes of a stretch */
    const float own = fmaxf(ml[0].x, ml[1].x);
    __syncwarp();
    const float all = most_upto(own, lane, WARP), in = most_upto(own, lane, n);
    float before = __shfl_up_sync(~0u, all, 1), most = __shfl_up_sync(~0u, in, 1);
    before = lane == 0 ? s->most : fmaxf(before, s->most);
    if (lane % n == 0) most = -CUDART_INF_F;
    __syncwarp();
    if (lane == WARP - 1) s->most = fmaxf(all, s->most);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (per == 1) most = -CUDART_INF_F;
        const joint j(most, ml[i].x, scale);
        s->part[2 * lane + i] = {j.old, j.fresh, ml[i].y * j.fresh, 0};
        if (per > 1) continue;
        const joint t(before, ml[i].x, scale);
        s->stretch[2 * lane + i] = make_float2(t.old, t.fresh);
    }
    /* What was before the stretch is with its first lane, its largest with its last. */
    before = __shfl_sync(~0u, before, lane / n * n);
    if (per == 1 || lane % n != n - 1) return;
    const joint t(before, most, scale);
    s->stretch[lane / n] = make_float2(t.old, t.fresh);
}

/* What is to be joined of a lane's V values, asked for before it is needed. */
template <int V> struct join_values {
    static const int ASKED = 32 / V; /* parts: as many as there are registers for */
    float v[ASKED][V];

    __device__ __forceinline__ void ask(const float *from, uint32_t n, uint32_t hd)
    {
#pragma unroll
        for (uint32_t e = 0; e < ASKED; e++) {
            if (e >= n) break;
            if constexpr (V == 4) {
                const float4 x = __ldcg((const float4 *)(from + (uint64_t)e * hd));
                v[e][0] = x.x, v[e][1] = x.y, v[e][2] = x.z, v[e][3] = x.w;
            } else {
                v[e][0] = __ldcg(from + (uint64_t)e * hd);
            }
        }
    }
};

/* Of a head, and of V of its values. */
template <int V> struct head_sums {
    float sum, o[V];

    /* Of n parts, each in turn, those of a stretch by themselves. */
    __device__ __forceinline__ void add(const join_shared *s, uint32_t first, uint32_t n,
                                        uint32_t per, const join_values<V> &x)
    {
        float part_sum = 0, p[V] = {};
#pragma unroll
        for (uint32_t e = 0; e < join_values<V>::ASKED; e++) {
            if (e >= n) break;
            const join_factors f = s->part[first + e];
            part_sum = fmaf(part_sum, f.old, f.sum);
#pragma unroll
            for (int i = 0; i < V; i++)
                p[i] = fmaf(p[i], f.old, x.v[e][i] * f.fresh);
            if (per > 1 && e % STRETCH + 1 < STRETCH && e + 1 < n) continue;
            const float2 t = s->stretch[(first + e) / per];
            sum = fmaf(sum, t.x, part_sum * t.y);
            part_sum = 0;
#pragma unroll
            for (int i = 0; i < V; i++) {
                o[i] = fmaf(o[i], t.x, p[i] * t.y);
                p[i] = 0;
            }
        }
    }
};

/* d: the first of this lane's values, of all lanes' of the warp the next ones. */
template <int V>
__device__ __forceinline__ void joined_write(const cuda_attend &a, uint32_t row, uint32_t head,
                                             uint32_t d, const head_sums<V> &sums)
{
    const bool there = d < a.kv.head_dim;
    const uint32_t at = head * a.kv.head_dim + d;
    float *y = a.y.f + (uint64_t)row * a.y.width + at;
    if constexpr (V == 4) {
        const float4 o =
            make_float4(__fdiv_rn(sums.o[0], sums.sum), __fdiv_rn(sums.o[1], sums.sum),
                        __fdiv_rn(sums.o[2], sums.sum), __fdiv_rn(sums.o[3], sums.sum));
        if (there) *(float4 *)y = o;
        if (a.quantise) quantise_quads(o, there, at, row_codes(a.y, row));
    } else {
        const float o = __fdiv_rn(sums.o[0], sums.sum);
        if (there) *y = o;
        if (a.quantise) quantise_block(o, threadIdx.x % WARP, row_codes(a.y, row), at / CUDA_BLOCK);
    }
}

/* A warp joins a head's parts in order. */
template <int V>
__device__ __forceinline__ void head_join(const cuda_attend &a, join_shared *s, uint32_t row,
                                          uint32_t head, uint64_t at, uint32_t n, uint32_t d)
{
    const uint32_t per = STRETCH / a.together, hd = a.kv.head_dim, lane = threadIdx.x % WARP;
    const uint32_t asked = join_values<V>::ASKED;
    const float *values = a.o + at * hd + (d < hd ? d : 0);
    head_sums<V> sums = {};
    join_values<V> now, next;
    now.ask(values, n, hd);
    if (lane == 0) s->most = -CUDART_INF_F;
    for (uint32_t i = 0; i < n; i += asked) {
        if (i + asked < n) next.ask(values + (uint64_t)(i + asked) * hd, n - i - asked, hd);
        if (i % JOIN_PARTS == 0) {
            float2 ml[2];
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                const uint32_t e = i + 2 * lane + j;
                ml[j] =
                    e < n ? __ldcg((const float2 *)a.ml + at + e) : make_float2(-CUDART_INF_F, 0);
            }
            __syncwarp();
            factors_make(s, (int)lane, ml, (int)per, a.scale * LOG2_E);
            __syncwarp();
        }
        sums.add(s, i % JOIN_PARTS, n - i, per, now);
        now = next;
    }
    joined_write<V>(a, row, head, d, sums);
}

/* A warp 32 V values of a head. Of a long conversation there are many parts: the more warps ask for
 * them, and the further ahead, the better, unless there are many heads anyway. */
template <int V> __global__ void __launch_bounds__(JOIN_THREADS) join(const cuda_attend a)
{
    __shared__ join_shared s[JOIN_THREADS / WARP];
    dependency_release();
    const uint32_t warp = threadIdx.x / WARP, each = (a.kv.head_dim + WARP * V - 1) / (WARP * V);
    const uint32_t unit = blockIdx.x * (JOIN_THREADS / WARP) + warp, head = unit / each;
    const uint32_t row = a.listed ? a.listed[a.first_row + blockIdx.y] : a.first_row + blockIdx.y;
    const uint32_t n = a.kv.rows[row].pos / (CELLS * a.together) + 1; /* no kernel writes these */
    dependency_wait();
    if (head >= a.kv.n_heads) return;
    const uint64_t at = (uint64_t)blockIdx.y * a.kv.n_heads + head;
    head_join<V>(a, &s[warp], row, head, at * (a.n_splits / a.together), n,
                 unit % each * WARP * V + threadIdx.x % WARP * V);
}

template <int V> static cudaError_t launch_join(cudaStream_t s, const cuda_attend *a)
{
    const uint32_t warps = JOIN_THREADS / WARP, values = WARP * V;
    const uint32_t units = a->kv.n_heads * ((a->kv.head_dim + values - 1) / values);
    return launch(s, a->dependent, join<V>, dim3((units + warps - 1) / warps, a->n_rows),
                  JOIN_THREADS, 0, *a);
}

extern "C" cudaError_t cuda_launch_join(cudaStream_t s, const struct cuda_attend *a)
{
    return a->n_rows * a->kv.n_heads < JOIN_HEADS ? launch_join<1>(s, a) : launch_join<4>(s, a);
}
