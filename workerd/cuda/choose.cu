/* SPDX-License-Identifier: MIT */
/*
 * The last of sample.cu's launches, a block of threads a row: sorts the row's list, a thread an
 * element, filters and draws, and gives probabilities. A row whose list doesn't decide (thousands
 * of equals, a top_k over CUDA_LIST) is searched whole: the element at which a sum over the order
 * is reached is found byte by byte of its place.
 */
#include "workerd/cuda/sample.cuh"

enum {
    ROW_THREADS = 1024,
    RADIX = 256,
    HISTOGRAMS = 16,                /* of the same, so that few threads add to the same place */
    HALF = 22,                      /* bits of a mass that are summed over a warp at once */
    EACH = CUDA_PART / ROW_THREADS, /* logits of a thread in a draw from a part */
};
static_assert((int)CUDA_LIST == (int)ROW_THREADS, "a thread sorts one of the list");

/* ---- the list, sorted ---- */

/* A thread a value: the largest first. All keys but the first `size`, a power of two from WARP on,
 * are 0. */
__device__ uint64_t block_sorted(uint64_t key, uint32_t size)
{
    __shared__ uint64_t keys[ROW_THREADS];
    const uint32_t me = threadIdx.x;
    for (uint32_t k = 2; k <= size; k *= 2)
        for (uint32_t j = k / 2; j; j /= 2) { /* Batcher's bitonic network */
            uint64_t other;
            if (j < WARP) {
                other = __shfl_xor_sync(~0u, key, j);
            } else {
                __syncthreads();
                keys[me] = key;
                __syncthreads();
                other = keys[me ^ j];
            }
            bool larger = !(me & j) == !(me & k);
            key = larger == (key > other) ? key : other;
        }
    return key;
}

__device__ __forceinline__ uint32_t sort_size(uint32_t n)
{
    uint32_t size = WARP;
    while (size < n)
        size *= 2;
    return size;
}

/* ---- a whole row, searched ---- */

/* What is summed: the mass at a temperature, or the number of elements. */
struct measure {
    const float *logits;
    uint32_t n;
    float most;
    double per; /* 0: the number */

    __device__ mass_sum of(float logit) const { return per > 0 ? mass_of(logit, most, per) : 1; }
};

/* Of the elements up to a place in the order. */
__device__ mass_sum sum_to(const measure &m, uint64_t place)
{
    mass_sum sum = 0;
    for (uint32_t i = threadIdx.x; i < m.n; i += ROW_THREADS)
        if (place_of(m.logits[i], i) >= place) sum += m.of(m.logits[i]);
    return block_sum(sum);
}

/* Where a sum over the order reaches a goal: so far the place's first bytes, and the sum before. */
struct search {
    uint64_t found;
    mass_sum before;
};

/* Of the bins, from the last one down, that in which the sum reaches the goal. By the first warp.
 */
__device__ search bin_reached(const mass_sum *bins, mass_sum goal, const search &s)
{
    enum { SHARE = RADIX / WARP };
    const uint32_t lane = threadIdx.x % WARP;
    mass_sum mine = 0;
    for (uint32_t i = 0; i < SHARE; i++)
        mine += bins[RADIX - 1 - lane * SHARE - i];
    mass_sum up_to = mine;
    for (int o = 1; o < WARP; o *= 2) {
        mass_sum v = __shfl_up_sync(~0u, up_to, o);
        if (lane >= (uint32_t)o) up_to += v;
    }
    uint32_t from = s.before + up_to >= goal ? lane : WARP - 1;
    from = __reduce_min_sync(~0u, from);
    mass_sum sum = s.before + up_to - mine;
    uint32_t bin = RADIX - 1 - lane * SHARE;
    for (uint32_t i = 1; i < SHARE && sum + bins[bin] < goal; i++)
        sum += bins[bin--];
    return search{s.found << 8 | __shfl_sync(~0u, bin, from), __shfl_sync(~0u, sum, from)};
}

/* Adds to a bin for each lane that is in. Rows that are searched are flat, most lanes have the same
 * bin or two: those are summed over the warp first. */
__device__ void add_to(mass_sum *bins, bool in, uint32_t bin, mass_sum v)
{
    for (int round = 0; round < 2; round++) {
        uint32_t left = __ballot_sync(~0u, in);
        if (!left) return;
        uint32_t first = (uint32_t)__ffs((int)left) - 1, its = __shfl_sync(~0u, bin, first);
        bool same = in && bin == its;
        uint32_t low = __reduce_add_sync(~0u, same ? (uint32_t)v & ((1u << HALF) - 1) : 0);
        uint32_t high = __reduce_add_sync(~0u, same ? (uint32_t)(v >> HALF) : 0);
        if (threadIdx.x % WARP == first) atomicAdd(&bins[its], ((mass_sum)high << HALF) + low);
        in = in && !same;
    }
    if (in) atomicAdd(&bins[bin], v);
}

/* bins[0] = by the next byte, the sums of the elements from `least` on whose place begins with the
 * bytes found. */
__device__ void histogram(const measure &m, uint64_t least, int shift, uint64_t found,
                          mass_sum (*bins)[RADIX])
{
    for (uint32_t i = threadIdx.x; i < HISTOGRAMS * RADIX; i += ROW_THREADS)
        bins[i / RADIX][i % RADIX] = 0;
    __syncthreads();
    for (uint32_t base = 0; base < m.n; base += ROW_THREADS) {
        uint32_t i = base + threadIdx.x;
        float logit = i < m.n ? m.logits[i] : 0;
        uint64_t place = place_of(logit, i);
        bool in = i < m.n && place >= least && (shift == 56 || place >> (shift + 8) == found);
        add_to(bins[threadIdx.x / WARP % HISTOGRAMS], in, place >> shift & (RADIX - 1),
               in ? m.of(logit) : 0);
    }
    __syncthreads();
    if (threadIdx.x < RADIX)
        for (uint32_t i = 1; i < HISTOGRAMS; i++)
            bins[0][threadIdx.x] += bins[i][threadIdx.x];
    __syncthreads();
}

/* The place of the first element at which the sum over the order, down to the place `least`,
 * reaches a goal of at least 1; it does. Byte by byte; of the ids' first bytes all are the same. */
__device__ uint64_t reached(const measure &m, mass_sum goal, uint64_t least)
{
    __shared__ mass_sum bins[HISTOGRAMS][RADIX];
    __shared__ search next; /* of all: written and read between barriers of two passes */
    search s = {0, 0};
    for (int shift = 56; shift >= 0; shift -= 8) {
        histogram(m, least, shift, s.found, bins);
        if (threadIdx.x < WARP) {
            search to = bin_reached(bins[0], goal, s);
            if (threadIdx.x == 0) next = to;
        }
        __syncthreads();
        s = next;
    }
    return s.found;
}

/* The place of the first element but the very first that is too unlikely; 0: there is none. */
__device__ uint64_t unlikely(const measure &m, float min_p, uint64_t first)
{
    __shared__ mass_sum most;
    uint64_t mine = 0;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < m.n; i += ROW_THREADS) {
        uint64_t place = place_of(m.logits[i], i);
        if (place != first && mass_weight(m.logits[i], m.most, 1) < (double)min_p)
            mine = max(mine, place);
    }
    if (mine) atomicMax(&most, (mass_sum)mine);
    __syncthreads();
    return most;
}

/* total: the row's mass, where no top_k bounds it. */
__device__ uint32_t draw_searched(const task &t, const cuda_extreme &e, mass_sum total)
{
    const uint64_t first = place_of(e.most, e.at);
    measure m = {t.logits, t.n_vocab, e.most, 0};
    uint64_t least = t.is_bounded() ? reached(m, t.c.top_k, 0) : 0, last = least;
    m.per = 1;
    if (t.c.top_p < 1) {
        if (t.is_bounded()) total = sum_to(m, least);
        mass_sum goal = mass_share(t.c.top_p, total);
        last = reached(m, goal ? goal : 1, least);
    }
    if (t.c.min_p > 0) last = max(last, unlikely(m, t.c.min_p, first) + 1);
    m.per = 1 / (double)t.c.temperature;
    mass_sum want = mass_drawn(t.c.seed, t.c.pos, sum_to(m, last));
    return id_at(reached(m, want + 1, last));
}

/* ---- choose ---- */

__device__ mass_sum row_mass(const task &t)
{
    return block_sum(threadIdx.x < t.n_parts ? t.sums[threadIdx.x] : 0);
}

/* By the order of the ids, with no filter. */
__device__ uint32_t draw_row(const task &t, const cuda_extreme &e)
{
    __shared__ uint32_t part, token;
    __shared__ mass_sum rest;
    mass_sum mine = threadIdx.x < t.n_parts ? t.sums[threadIdx.x] : 0, total;
    mass_sum up_to = block_scan(mine, &total);
    mass_sum want = mass_drawn(t.c.seed, t.c.pos, total);
    if (up_to - mine <= want && want < up_to) {
        part = threadIdx.x;
        rest = want - (up_to - mine);
    }
    __syncthreads();
    const uint32_t first = part * CUDA_PART + threadIdx.x * EACH;
    mass_sum each[EACH], sum = 0;
    for (uint32_t i = 0; i < EACH; i++) {
        each[i] = first + i < t.n_vocab ? mass_of(t.logits[first + i], e.most, t.per()) : 0;
        sum += each[i];
    }
    up_to = block_scan(sum, &total) - sum;
    for (uint32_t i = 0; i < EACH; i++) {
        if (up_to <= rest && rest < up_to + each[i]) token = first + i;
        up_to += each[i];
    }
    __syncthreads();
    return token;
}

/* How many of the first n in order the filters keep, this thread's being `logit`; 0 where they keep
 * more than there are here. */
__device__ uint32_t keep(const task &t, float logit, float most, uint32_t n)
{
    __shared__ uint32_t likely;
    const uint32_t me = threadIdx.x;
    bool decided = t.is_bounded() || n == t.n_vocab;
    uint32_t k = t.is_bounded() ? t.c.top_k : n, kept = k;
    if (t.c.top_p < 1) {
        mass_sum total, up_to = block_scan(me < k ? mass_of(logit, most, 1) : 0, &total);
        mass_sum goal = mass_share(t.c.top_p, t.is_bounded() ? total : row_mass(t));
        uint32_t reach = __syncthreads_count(me < k && up_to < goal) + 1;
        decided |= reach <= k;
        kept = min(kept, reach);
    }
    if (t.c.min_p > 0) {
        if (me == 0) likely = k;
        __syncthreads();
        if (me > 0 && me < k && mass_weight(logit, most, 1) < (double)t.c.min_p)
            atomicMin(&likely, me);
        __syncthreads();
        decided |= likely < k;
        kept = min(kept, likely);
    }
    return decided ? kept : 0;
}

__device__ uint32_t draw_filtered(const task &t, const cuda_extreme &e)
{
    __shared__ uint32_t token;
    const uint32_t n = *t.listed, me = threadIdx.x;
    const bool bounds = t.c.top_p < 1 && !t.is_bounded();
    uint32_t kept = 0;
    uint64_t place = 0;
    if (n > 0) {
        place = block_sorted(me < n ? t.list[me] : 0, sort_size(n));
        kept = keep(t, logit_at(place), e.most, n);
    }
    if (kept == 0) return draw_searched(t, e, bounds ? row_mass(t) : 0);
    mass_sum mine = me < kept ? mass_of(logit_at(place), e.most, 1 / (double)t.c.temperature) : 0;
    mass_sum total, up_to = block_scan(mine, &total);
    mass_sum want = mass_drawn(t.c.seed, t.c.pos, total);
    if (up_to - mine <= want && want < up_to) token = id_at(place);
    __syncthreads();
    return token;
}

__device__ uint32_t token_of(const task &t)
{
    const cuda_extreme e = row_extreme(t);
    if (e.nan || !t.draws()) return greedy(e);
    return t.filters() ? draw_filtered(t, e) : draw_row(t, e);
}

/* The first n of a row whose list has too many near the largest to hold them. */
__device__ uint64_t first_searched(const task &t, const cuda_extreme &e, uint32_t n)
{
    __shared__ uint64_t list[LINK_TOP_MAX];
    __shared__ uint32_t listed;
    const measure m = {t.logits, t.n_vocab, e.most, 0};
    const uint64_t last = reached(m, n, 0);
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < t.n_vocab; i += ROW_THREADS) {
        uint64_t place = place_of(t.logits[i], i);
        if (place >= last) list[atomicAdd(&listed, 1u)] = place;
    }
    __syncthreads();
    return block_sorted(threadIdx.x < n ? list[threadIdx.x] : 0, WARP);
}

__device__ void probs_of(const task &t, uint32_t token, link_probs *to)
{
    const cuda_extreme e = row_extreme(t);
    const uint32_t me = threadIdx.x, n = *t.listed, top = e.nan ? 0 : t.target();
    double norm = e.nan ? 0 : mass_log(row_mass(t));
    if (me == 0) {
        to->logprob = e.nan ? -INFINITY : mass_logprob(t.logits[token], e.most, norm);
        to->n_top = top;
    }
    uint64_t place = 0;
    if (top)
        place = n ? block_sorted(me < n ? t.list[me] : 0, sort_size(n)) : first_searched(t, e, top);
    if (me >= LINK_TOP_MAX) return;
    bool there = me < top;
    to->top[me] = link_prob{there ? id_at(place) : 0,
                            there ? mass_logprob(logit_at(place), e.most, norm) : 0};
}

__global__ void __launch_bounds__(ROW_THREADS) choose(const cuda_sample a)
{
    dependency_release();
    dependency_wait();
    const uint32_t row = blockIdx.x;
    const task choice(a, row, CUDA_CHOICE), probs(a, row, CUDA_PROBS);
    uint32_t token = 0;
    if (choice.is_asked()) {
        token = token_of(choice);
        if (threadIdx.x == 0) a.token[row] = a.host_token[row] = token;
    }
    if (probs.is_asked()) {
        uint32_t of = choice.c.of == LINK_NEXT_SAMPLED ? token : choice.c.of;
        probs_of(probs, min(of, a.n_vocab - 1), a.probs + row);
    }
}

extern "C" cudaError_t cuda_launch_choose(cudaStream_t s, const struct cuda_sample *a)
{
    return launch(s, a->overlaps, choose, a->n_rows, ROW_THREADS, 0, *a);
}
