/* SPDX-License-Identifier: MIT */
/*
 * Maps a link and checks it, rings and waits at bells, reads windows. Called by the head (loop
 * thread) and by the stage (device thread). It decides nothing: who rings and who waits is theirs.
 */
#include "workerd/link.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

enum {
    SLOTS_MAX = POOL_STAGES_MAX * LINK_SLOTS_PER_STAGE,
    ROWS_MAX = 1 << 20, /* token rows of a window; a link with more is a mistake */
    EMBD_MAX = 1 << 20, /* no model is near */
};

/* Whether n things of bytes each, from off on, lie below end; off must be aligned. */
static bool lies_in(uint64_t off, uint64_t n, uint64_t bytes, uint64_t align, uint64_t end)
{
    uint64_t size, last;
    if (off % align || __builtin_mul_overflow(n, bytes, &size)) return false;
    return !__builtin_add_overflow(off, size, &last) && last <= end;
}

static const char *layout_fault(const struct link_header *h)
{
    if (h->n_slots == 0 || h->n_slots > SLOTS_MAX) return "number of slots";
    if (h->slots_off % 64 || h->slot_bytes % 64) return "place of the slots";
    if (!lies_in(h->bells_off, h->n_stages + 1, sizeof(struct link_bell), 64, h->bytes))
        return "place of the bells";
    if (!lies_in(h->inboxes_off, h->n_stages, sizeof(struct link_inbox), 64, h->bytes))
        return "place of the inboxes";
    if (!lies_in(h->slots_off, h->n_slots, h->slot_bytes, 64, h->bytes)) return "size of the slots";
    uint64_t end = h->slot_bytes;
    if (!lies_in(h->lanes_off, h->max_lanes, sizeof(struct link_lane), 64, end) ||
        h->lanes_off < sizeof(struct link_window))
        return "place of the lanes";
    if (!lies_in(h->tokens_off, h->max_rows, sizeof(uint32_t), 4, end)) return "place of tokens";
    if (!lies_in(h->biases_off, (uint64_t)h->max_lanes * LINK_BIASES_MAX, sizeof(struct link_bias),
                 4, end))
        return "place of biases";
    if (!lies_in(h->results_off, h->max_lanes, sizeof(uint32_t), 4, end)) return "place of results";
    if (!lies_in(h->probs_off, h->max_rows, sizeof(struct link_probs), 4, end))
        return "place of probabilities";
    if (!lies_in(h->ways_off, h->n_stages - 1, sizeof(uint32_t), 4, end))
        return "place of the ways";
    if (h->activations_bytes / sizeof(float) / h->n_embd < h->max_rows)
        return "size of the activations";
    if (!lies_in(h->activations_off, h->n_stages - 1, h->activations_bytes, 4, end))
        return "place of the activations";
    return NULL;
}

static int header_check(const struct link_header *h, uint64_t file_bytes, const struct link_want *w,
                        struct why *why)
{
    if (h->magic != LINK_MAGIC || h->version != LINK_SHM_VERSION)
        return why_set(why, -EPROTO, "the link is not of version %u", LINK_SHM_VERSION);
    if (h->pool_id != w->pool_id || h->pipeline != w->pipeline || h->life != w->life)
        return why_set(why, -EPROTO, "the link is of another pool, pipeline or life");
    if (h->bytes > file_bytes) return why_set(why, -EPROTO, "the link's file is cut short");
    if (h->n_stages != w->n_stages || h->n_embd != w->n_embd || h->n_embd > EMBD_MAX)
        return why_set(why, -EPROTO, "the link is for %u stages of width %u, here are %u of %u",
                       h->n_stages, h->n_embd, w->n_stages, w->n_embd);
    if (h->max_lanes == 0 || h->max_lanes > w->max_lanes || h->max_rows < h->max_lanes ||
        h->max_rows > w->max_rows || h->max_rows > ROWS_MAX)
        return why_set(why, -EPROTO, "the link is for %u rows of %u lanes, here are %u of %u",
                       h->max_rows, h->max_lanes, w->max_rows, w->max_lanes);
    const char *fault = layout_fault(h);
    return fault ? why_set(why, -EPROTO, "the link's %s is out of its range", fault) : 0;
}

int link_map(int fd, const struct link_want *want, struct why *why, struct link **ret)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return why_set(why, -errno, "the link: %s", strerror(errno));
    if (st.st_size < (off_t)sizeof(struct link_header))
        return why_set(why, -EPROTO, "the link's file is cut short");
    size_t bytes = (size_t)st.st_size;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return why_set(why, -errno, "cannot map the link: %s", strerror(errno));
    struct link *l = xnew(struct link);
    *l = (struct link){.base = at, .refs = 1};
    memcpy(&l->h, at, sizeof(l->h));
    int r = header_check(&l->h, bytes, want, why);
    l->h.bytes = bytes; /* what is to be unmapped */
    if (r < 0) return link_unref(l), r;
    *ret = l;
    return 0;
}

struct link *link_ref(struct link *l)
{
    (void)__atomic_add_fetch(&l->refs, 1, __ATOMIC_RELAXED);
    return l;
}

void link_unref(struct link *l)
{
    if (!l || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL)) return;
    (void)munmap(l->base, l->h.bytes);
    free(l);
}

/* ---- places ---- */

static char *slot_at(const struct link *l, uint64_t count)
{
    return l->base + l->h.slots_off + count % l->h.n_slots * l->h.slot_bytes;
}

struct link_bell *link_bell(const struct link *l, uint32_t i)
{
    return (struct link_bell *)(l->base + l->h.bells_off) + i;
}

struct link_window *link_slot(const struct link *l, uint64_t count)
{
    return (struct link_window *)slot_at(l, count);
}

struct link_lane *link_lanes(const struct link *l, uint64_t count)
{
    return (struct link_lane *)(slot_at(l, count) + l->h.lanes_off);
}

uint32_t *link_tokens(const struct link *l, uint64_t count)
{
    return (uint32_t *)(slot_at(l, count) + l->h.tokens_off);
}

struct link_bias *link_biases(const struct link *l, uint64_t count)
{
    return (struct link_bias *)(slot_at(l, count) + l->h.biases_off);
}

struct link_probs *link_probs(const struct link *l, uint64_t count)
{
    return (struct link_probs *)(slot_at(l, count) + l->h.probs_off);
}

uint32_t *link_results(const struct link *l, uint64_t count)
{
    return (uint32_t *)(slot_at(l, count) + l->h.results_off);
}

float *link_activations(const struct link *l, uint64_t count, uint32_t stage)
{
    return (float *)(slot_at(l, count) + l->h.activations_off + stage * l->h.activations_bytes);
}

uint32_t *link_way(const struct link *l, uint64_t count, uint32_t stage)
{
    return (uint32_t *)(slot_at(l, count) + l->h.ways_off) + stage;
}

struct link_inbox *link_inbox(const struct link *l, uint32_t stage)
{
    return (struct link_inbox *)(l->base + l->h.inboxes_off) + stage;
}

/* ---- bells ---- */

uint32_t bell_count(const struct link_bell *b) { return shm_load_u32(&b->count); }

void bell_ring(struct link_bell *b, uint32_t count)
{
    __atomic_store_n(&b->count, count, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&b->sleepers, __ATOMIC_SEQ_CST)) return;
    (void)syscall(SYS_futex, &b->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void bell_wake(struct link_bell *b)
{
    if (!__atomic_load_n(&b->sleepers, __ATOMIC_RELAXED)) return;
    (void)syscall(SYS_futex, &b->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t clock_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

bool bell_wait(struct link_bell *b, uint32_t seen, uint32_t spin_us, uint32_t timeout_us)
{
    if (bell_count(b) != seen) return true;
    for (uint64_t until = spin_us ? clock_us() + spin_us : 0; spin_us && clock_us() < until;)
        if (bell_count(b) != seen) return true;
    /* Announced, then looked at again: a ring between the two looks sees the sleeper. */
    __atomic_store_n(&b->sleepers, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b->count, __ATOMIC_SEQ_CST) == seen) {
        struct timespec t = {timeout_us / 1000000, (long)(timeout_us % 1000000) * 1000};
        /* Not private: the ringer is another process. Every reason to return is looked into. */
        (void)syscall(SYS_futex, &b->count, FUTEX_WAIT, seen, &t, NULL, 0);
    }
    __atomic_store_n(&b->sleepers, 0, __ATOMIC_SEQ_CST);
    return bell_count(b) != seen;
}

/* ---- windows ---- */

static int sampling_check(const struct link_lane *l, const struct link_limits *m, struct why *why)
{
    if (l->want > 2) return why_set(why, -EPROTO, "%u is no kind of logits", l->want);
    if (!(l->temperature >= 0 && l->top_p >= 0 && l->min_p >= 0) || isinf(l->temperature))
        return why_set(why, -EPROTO, "a number of the sampling is out of its range");
    if (!isfinite(l->repeat) || l->repeat < 0 || !isfinite(l->presence) || !isfinite(l->frequency))
        return why_set(why, -EPROTO, "a penalty is out of its range");
    if (l->n_biases > LINK_BIASES_MAX)
        return why_set(why, -EPROTO, "%u biases where %u are the most", l->n_biases,
                       LINK_BIASES_MAX);
    bool all = l->probs == LINK_PROBS_ALL;
    bool is_next = l->next < m->n_vocab || l->next == LINK_NEXT_SAMPLED;
    if (l->probs > LINK_PROBS_ALL || (all && (l->want != 2 || !is_next)) || l->n_top > LINK_TOP_MAX)
        return why_set(why, -EPROTO, "these probabilities can't be wanted");
    return 0;
}

static int lane_check(const struct link_lane *l, const struct link_limits *m, uint32_t rows_left,
                      struct why *why)
{
    if (l->row >= m->n_rows)
        return why_set(why, -EPROTO, "row %u of a pool of %u", l->row, m->n_rows);
    if (l->n_rows == 0 || l->n_rows > rows_left)
        return why_set(why, -EPROTO, "%u token rows where %u are left", l->n_rows, rows_left);
    if (l->pos > m->context_tokens || l->n_rows > m->context_tokens - l->pos)
        return why_set(why, -EPROTO, "%u token rows from position %u on in a context of %u",
                       l->n_rows, l->pos, m->context_tokens);
    if (l->copy_cells && (l->copy_chunk > m->n_chunks || l->copy_cells > l->pos % m->chunk_cells))
        return why_set(why, -EPROTO, "%u cells of chunk %u can't be copied before position %u",
                       l->copy_cells, l->copy_chunk, l->pos);
    return sampling_check(l, m, why);
}

static int kind_check(const struct link_lane *l, uint32_t kind_before, struct why *why)
{
    if (l->kind > LINK_GENERATED) return why_set(why, -EPROTO, "%u is no kind of rows", l->kind);
    if (l->kind == LINK_GENERATED && kind_before == LINK_PROMPT)
        return why_set(why, -EPROTO, "generated rows behind those of a prompt");
    return 0;
}

static int lanes_check(const struct link_copy *c, const struct link_limits *m, struct why *why)
{
    uint32_t rows = c->window.n_rows, biases = c->window.n_biases, kind = LINK_GENERATED;
    for (uint32_t i = 0; i < c->window.n_lanes; i++) {
        const struct link_lane *l = &c->lanes[i];
        int r = lane_check(l, m, rows, why);
        if (r == 0) r = kind_check(l, kind, why);
        if (r < 0) return r;
        if (l->n_biases > biases)
            return why_set(why, -EPROTO, "%u biases where %u are left", l->n_biases, biases);
        rows -= l->n_rows;
        biases -= l->n_biases;
        kind = l->kind;
    }
    if (rows) return why_set(why, -EPROTO, "%u token rows belong to no lane", rows);
    return biases ? why_set(why, -EPROTO, "%u biases belong to no lane", biases) : 0;
}

/* A fed lane has one row, whose token comes from a window that is still in its slot. */
static int fed_check(const struct link *l, uint64_t count, const struct link_lane *lane,
                     uint32_t token, struct why *why)
{
    if (lane->n_rows == 1 && token == LINK_TOKEN_FED && lane->fed_back < l->h.n_slots &&
        lane->fed_back < count && lane->fed_lane < l->h.max_lanes)
        return 0;
    return why_set(why, -EPROTO, "lane %u of %u windows before can't feed its %u rows",
                   lane->fed_lane, lane->fed_back, lane->n_rows);
}

/* The lanes are checked. */
static int tokens_check(const struct link *l, uint64_t count, const struct link_copy *c,
                        uint32_t n_vocab, struct why *why)
{
    const uint32_t *token = c->tokens;
    int r = 0;
    for (uint32_t i = 0; i < c->window.n_lanes && r == 0; i++) {
        const struct link_lane *lane = &c->lanes[i];
        if (lane->fed_back) r = fed_check(l, count, lane, *token, why);
        for (uint32_t k = 0; k < lane->n_rows && !lane->fed_back && r == 0; k++)
            if (token[k] >= n_vocab)
                r = why_set(why, -EPROTO, "token %u of a vocabulary of %u", token[k], n_vocab);
        token += lane->n_rows;
    }
    return r;
}

static int biases_check(const struct link_copy *c, uint32_t n_vocab, struct why *why)
{
    for (uint32_t i = 0; i < c->window.n_biases; i++)
        if (c->biases[i].id >= n_vocab || isnan(c->biases[i].add))
            return why_set(why, -EPROTO, "a bias of token %u of a vocabulary of %u",
                           c->biases[i].id, n_vocab);
    return 0;
}

int link_read(const struct link *l, uint64_t count, const struct link_limits *limits,
              struct link_copy *ret, struct why *why)
{
    struct link_window *w = &ret->window;
    memcpy(w, link_slot(l, count), sizeof(*w));
    if (w->number != pool_window(l->h.life, count))
        return why_set(why, -EPROTO, "its slot bears number %llu", (unsigned long long)w->number);
    if (w->n_lanes == 0 || w->n_lanes > l->h.max_lanes || w->n_rows > l->h.max_rows ||
        w->n_biases > w->n_lanes * LINK_BIASES_MAX)
        return why_set(why, -EPROTO,
                       "it has %u lanes, %u token rows and %u biases, %u, %u and %u a lane are the "
                       "most",
                       w->n_lanes, w->n_rows, w->n_biases, l->h.max_lanes, l->h.max_rows,
                       LINK_BIASES_MAX);
    memcpy(ret->lanes, link_lanes(l, count), w->n_lanes * sizeof(*ret->lanes));
    memcpy(ret->tokens, link_tokens(l, count), w->n_rows * sizeof(*ret->tokens));
    memcpy(ret->biases, link_biases(l, count), w->n_biases * sizeof(*ret->biases));
    int r = lanes_check(ret, limits, why);
    if (r == 0) r = tokens_check(l, count, ret, limits->n_vocab, why);
    return r < 0 ? r : biases_check(ret, limits->n_vocab, why);
}
