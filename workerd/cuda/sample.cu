/* SPDX-License-Identifier: MIT */
/*
 * The choice of tokens from rows of logits, and the probabilities of tokens: what sampler.h says,
 * with sampler.c's bits. The arithmetic is mass.h's; sums of masses are integers, so threads add in
 * any order.
 *
 * Rows that ask for nothing but the largest logit: argmax, a block of threads a row. Others take
 * four launches. Of each row there are two tasks, its choice (from the logits after biases and
 * penalties) and its probabilities (from the logits as they are); a task has parts of CUDA_PART
 * logits, so that a row alone has many multiprocessors too.
 *
 * look, a block of threads a part of a task, changes the logits and finds the part's largest.
 * weigh, likewise, sums the part's mass and counts how many logits lie how far below the row's
 * largest. gather, likewise, lists those so near to it that the filters decide among them. choose
 * (choose.cu) does the rest, a block of threads a row.
 */
#include "workerd/cuda/sample.cuh"

enum { PART_THREADS = 256, BINS_A_THREAD = CUDA_BINS / PART_THREADS, ROW_THREADS = 1024 };
enum { AHEAD = 16 }; /* logits that a thread asks for at once */

/* ---- the largest ---- */

/* Of n logits from id `first` on, in thread 0. */
__device__ cuda_extreme block_extreme(const float *logits, uint32_t n, uint32_t first)
{
    __shared__ best part[WARP];
    __shared__ uint32_t numbers[WARP];
    best b = {0, UINT32_MAX};
    uint32_t number = UINT32_MAX;
    int nan = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x * AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            v[k] = i + k * blockDim.x < n ? logits[i + k * blockDim.x] : 0;
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint32_t at = i + k * blockDim.x;
            if (at >= n) break;
            if (isnan(v[k])) {
                nan = 1;
                continue;
            }
            number = min(number, first + at);
            b = better(b, best{v[k], first + at});
        }
    }
    b = warp_best(b);
    number = __reduce_min_sync(~0u, number);
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = b;
        numbers[threadIdx.x / WARP] = number;
    }
    nan = __syncthreads_or(nan);
    if (threadIdx.x == 0)
        for (uint32_t i = 1; i < blockDim.x / WARP; i++) {
            b = better(b, part[i]);
            number = min(number, numbers[i]);
        }
    return cuda_extreme{b.v, b.i, number, (uint32_t)nan};
}

__global__ void __launch_bounds__(ROW_THREADS) argmax(const cuda_argmax a)
{
    dependency_release();
    dependency_wait();
    cuda_extreme e = block_extreme(a.x.f + (uint64_t)blockIdx.x * a.x.width, a.n_vocab, 0);
    if (threadIdx.x) return;
    a.token[blockIdx.x] = a.host_token[blockIdx.x] = greedy(e);
}

extern "C" cudaError_t cuda_launch_argmax(cudaStream_t s, const struct cuda_argmax *a)
{
    return launch(s, a->dependent, argmax, a->n_rows, ROW_THREADS, 0, *a);
}

/* ---- look ---- */

/* Biases of ids [first, first + n), in their order where an id is there twice. */
__device__ void add_biases(const uint32_t *biases, uint32_t n_biases, uint32_t first, uint32_t n,
                           float *l)
{
    for (uint32_t i = threadIdx.x; i < n_biases; i += PART_THREADS) {
        uint32_t id = biases[2 * i];
        if (id - first >= n) continue;
        uint32_t j = 0;
        while (j < i && biases[2 * j] != id)
            j++;
        if (j < i) continue; /* its first place adds them all */
        float v = l[id - first];
        for (; j < n_biases; j++)
            if (biases[2 * j] == id) v += __uint_as_float(biases[2 * j + 1]);
        l[id - first] = v;
    }
    __syncthreads();
}

/* How often each of ids [first, first + n) is there. */
__device__ void count(const uint32_t *ids, uint32_t n_ids, uint32_t first, uint32_t n,
                      uint32_t *counts)
{
    for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
        counts[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_ids; i += PART_THREADS)
        if (ids[i] - first < n) atomicAdd(&counts[ids[i] - first], 1u);
    __syncthreads();
}

__device__ void adjust(const cuda_choice &c, const uint32_t *words, uint32_t first, uint32_t n,
                       float *l, uint32_t *counts)
{
    const uint32_t *end = words + c.first_past + c.n_past;
    add_biases(words + c.first_bias, c.n_biases, first, n, l);
    if (c.n_repeat) {
        count(end - c.n_repeat, c.n_repeat, first, n, counts);
        for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
            if (counts[i]) l[i] = l[i] > 0 ? __fdiv_rn(l[i], c.repeat) : l[i] * c.repeat;
        __syncthreads();
    }
    if (!c.n_counted) return;
    count(end - c.n_counted, c.n_counted, first, n, counts);
    for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
        if (counts[i]) l[i] -= c.presence + c.frequency * (float)counts[i];
    __syncthreads();
}

__global__ void __launch_bounds__(PART_THREADS) look(const cuda_sample a)
{
    __shared__ float l[CUDA_PART];
    __shared__ uint32_t counts[CUDA_PART];
    dependency_release();
    dependency_wait();
    const uint32_t row = blockIdx.y, first = blockIdx.x * CUDA_PART;
    const uint32_t n = min((uint32_t)CUDA_PART, a.n_vocab - first);
    const task t(a, row, blockIdx.z);
    if (!t.is_asked()) return;
    const float *from = a.x.f + (uint64_t)row * a.x.width + first;
    if (blockIdx.z == CUDA_CHOICE && t.adjusts()) {
        for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
            l[i] = from[i];
        __syncthreads();
        adjust(t.c, a.words, first, n, l, counts);
        float *to = a.adjusted + (uint64_t)row * a.n_vocab + first;
        for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
            to[i] = l[i];
        from = l;
    }
    cuda_extreme e = block_extreme(from, n, first);
    if (threadIdx.x == 0) t.extremes[blockIdx.x] = e;
    if (blockIdx.x) return;
    for (uint32_t i = threadIdx.x; i < CUDA_BINS; i += PART_THREADS)
        t.bins[i] = 0;
    if (threadIdx.x == 0) *t.listed = 0;
}

/* ---- weigh and gather ---- */

__global__ void __launch_bounds__(PART_THREADS) weigh(const cuda_sample a)
{
    __shared__ uint32_t bins[CUDA_BINS];
    dependency_release();
    dependency_wait();
    const uint32_t first = blockIdx.x * CUDA_PART;
    const uint32_t n = min((uint32_t)CUDA_PART, a.n_vocab - first);
    const task t(a, blockIdx.y, blockIdx.z);
    if (!t.is_asked() || !(t.lists() || t.weighs())) return;
    const cuda_extreme e = row_extreme(t);
    if (e.nan) return;
    if (t.weighs()) {
        const double per = t.per();
        mass_sum sum = 0;
        for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
            sum += mass_of(t.logits[first + i], e.most, per);
        sum = block_sum(sum);
        if (threadIdx.x == 0) t.sums[blockIdx.x] = sum;
    }
    if (!t.lists()) return;
    for (uint32_t i = threadIdx.x; i < CUDA_BINS; i += PART_THREADS)
        bins[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS)
        atomicAdd(&bins[bin_of(t.logits[first + i], e.most)], 1u);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < CUDA_BINS; i += PART_THREADS)
        if (bins[i]) atomicAdd(&t.bins[i], bins[i]);
}

/* The last bin of the list, -1 for none: with a target the first that reaches it, if all up to it
 * have room in the list; else the last so that they have. */
__device__ int last_bin(const task &t)
{
    __shared__ int last;
    const uint32_t me = threadIdx.x * BINS_A_THREAD, target = t.target();
    uint32_t counts[BINS_A_THREAD + 1], mine = 0;
    for (uint32_t i = 0; i <= BINS_A_THREAD; i++) {
        counts[i] = me + i < CUDA_BINS ? t.bins[me + i] : UINT32_MAX / 2;
        if (i < BINS_A_THREAD) mine += counts[i];
    }
    if (threadIdx.x == 0) last = -1;
    mass_sum total;
    uint32_t up_to = (uint32_t)block_scan(mine, &total) - mine;
    for (uint32_t i = 0; i < BINS_A_THREAD; i++) {
        uint32_t before = up_to;
        up_to += counts[i];
        if (up_to > CUDA_LIST) break;
        if (target ? before < target && target <= up_to : up_to + counts[i + 1] > CUDA_LIST)
            last = (int)(me + i);
    }
    __syncthreads();
    return last;
}

__global__ void __launch_bounds__(PART_THREADS) gather(const cuda_sample a)
{
    dependency_release();
    dependency_wait();
    const uint32_t first = blockIdx.x * CUDA_PART;
    const uint32_t n = min((uint32_t)CUDA_PART, a.n_vocab - first);
    const task t(a, blockIdx.y, blockIdx.z);
    if (!t.is_asked() || !t.lists()) return;
    const cuda_extreme e = row_extreme(t);
    if (e.nan) return;
    const int last = last_bin(t);
    for (uint32_t i = threadIdx.x; i < n; i += PART_THREADS) {
        float v = t.logits[first + i];
        if ((int)bin_of(v, e.most) <= last)
            t.list[atomicAdd(t.listed, 1u)] = place_of(v, first + i);
    }
}

extern "C" cudaError_t cuda_launch_sample(cudaStream_t s, const struct cuda_sample *a)
{
    const dim3 parts((a->n_vocab + CUDA_PART - 1) / CUDA_PART, a->n_rows, CUDA_TASKS);
    cudaError_t e = launch(s, a->dependent, look, parts, PART_THREADS, 0, *a);
    if (e == cudaSuccess) e = launch(s, a->overlaps, weigh, parts, PART_THREADS, 0, *a);
    if (e == cudaSuccess) e = launch(s, a->overlaps, gather, parts, PART_THREADS, 0, *a);
    if (e == cudaSuccess) e = cuda_launch_choose(s, a);
    return e;
}
