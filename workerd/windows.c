/* SPDX-License-Identifier: MIT */
/*
 * The head's windows: writes token ids into the pool, a window into its slot, rings stage 0, and
 * takes sampled tokens back. Called by head_step and when the last stage rings. What a window holds
 * is decided in schedule.c.
 *
 * Order of the stores: token ids -> the head's word in the page -> the slot -> bell 0. Dead after
 * the ids: nobody counts them. Dead after the word: the stages' words are lower and hold. Dead
 * after the bell: the stages run the window, its row is closed when this death is confirmed.
 *
 * A fed row is posted before its token is known (schedule.h). Its id is stored, and counted by the
 * word, when the window that samples it is back. Dead before that: the stages' words may be a cell
 * further than ours, which holds. When that token ends the answer, the row is closed with the cells
 * that came before it, as it would be had nothing been posted; the late window writes a cell that
 * nobody counts, and the row waits for it as for any window in flight.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/death.h"
#include "common/log.h"
#include "workerd/head_state.h"

void windows_begin(struct head *h)
{
    h->posted = h->done = 0;
    h->next_group = 0;
    memset(h->flying, 0, sizeof(h->flying));
    h->n_flights = h->link->h.n_slots;
    h->flights = xcalloc(h->n_flights, sizeof(*h->flights));
    for (uint32_t i = 0; i < h->n_flights; i++)
        h->flights[i].lanes = xcalloc(h->link->h.max_lanes, sizeof(*h->flights[i].lanes));
}

void windows_end(struct head *h)
{
    for (uint32_t i = 0; i < h->n_flights; i++)
        free(h->flights[i].lanes);
    free(TAKE(h->flights));
    h->n_flights = 0;
}

/* ---- posting ---- */

static uint64_t cell_of(const struct pool_map *pool, uint64_t entry, uint32_t pos)
{
    return (uint64_t)pool_entry_chunk(entry) * pool->chunk_cells + pos % pool->chunk_cells;
}

/* A fork's first window: the stages copy K/V of the cells before it, the head their ids and kinds.
 */
static void tokens_copy(const struct head *h, const struct lane *l)
{
    const struct pool_map *pool = h->pool;
    for (uint32_t pos = l->posted - l->copy_cells; pos < l->posted; pos++) {
        uint64_t to = cell_of(pool, pool_map_entry(pool, l->row, pos / pool->chunk_cells), pos);
        uint64_t from = cell_of(pool, l->copy_chunk, pos);
        if (to < pool->n_cells && from < pool->n_cells)
            pool->tokens->cell[to] = pool->tokens->cell[from];
    }
}

void windows_reuse(const struct head *h, struct lane *l)
{
    const struct pool_map *pool = h->pool;
    struct request *r = l->request;
    for (uint32_t pos = 0; pos < l->posted; pos++) {
        bool copied = pos >= l->posted - l->copy_cells;
        uint64_t entry =
            copied ? l->copy_chunk : pool_map_entry(pool, l->row, pos / pool->chunk_cells);
        uint64_t cell = cell_of(pool, entry, pos);
        uint32_t word = cell < pool->n_cells ? pool->tokens->cell[cell] : 0;
        r->words[pos] = request_token(r, pos) | (word & POOL_TOKEN_GENERATED);
    }
    l->alike = request_alike(r, l->posted);
}

/* The ids and kinds of cells [from, to) of a lane, then the word that counts them. */
static void tokens_store(struct head *h, const struct lane *l, uint32_t from, uint32_t to)
{
    const struct pool_map *pool = h->pool;
    const struct request *r = l->request;
    for (uint32_t pos = from; pos < to; pos++) {
        uint64_t entry = pool_map_entry(pool, l->row, pos / pool->chunk_cells);
        uint64_t cell = cell_of(pool, entry, pos);
        if (cell < pool->n_cells) pool->tokens->cell[cell] = r->words[pos];
    }
    DEATH_POINT("ids-stored");
    shm_store_u64(&pool->page->word[pool->n_rows + l->row], pool_word(l->lease, to));
}

static uint32_t lane_probs(const struct lane *l, const struct plan_lane *p)
{
    const struct request *r = l->request;
    if (r->prompt_probs && l->posted < r->n_prompt) return LINK_PROBS_ALL;
    return r->probs && p->sampled ? LINK_PROBS_SAMPLED : LINK_PROBS_NONE;
}

static struct link_lane lane_describe(const struct head *h, const struct lane *l,
                                      const struct plan_lane *p)
{
    const struct request *r = l->request;
    const struct sampling *s = &r->sampling;
    uint32_t end = l->posted + p->n_rows, probs = lane_probs(l, p);
    return (struct link_lane){
        .row = l->row,
        .lease = l->lease,
        .pos = l->posted,
        .n_rows = p->n_rows,
        .want = h->setup.trace_all || probs == LINK_PROBS_ALL ? WINDOW_ALL
                : p->sampled                                  ? WINDOW_LAST
                                                              : WINDOW_NONE,
        .top_k = s->top_k,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .seed = s->seed,
        .copy_chunk = l->copy_chunk,
        .copy_cells = l->copy_cells,
        .tag = r->id,
        .generated_from = r->n_prompt,
        .repeat_last = s->repeat_last,
        .repeat = s->repeat,
        .presence = s->presence,
        .frequency = s->frequency,
        .probs = probs,
        .n_top = r->n_top,
        .next = end < r->n_tokens ? request_token(r, end) : LINK_NEXT_SAMPLED,
        .kind = p->fed ? LINK_GENERATED : request_kind(r, l->posted),
    };
}

/* What is added to the logits of the lane's sampled row; returns how many. All up to that row comes
 * before the sampled token, and what lies past the prompt is generated. */
static uint32_t biases_store(const struct lane *l, const struct plan_lane *p, struct link_bias *to)
{
    const struct request *r = l->request;
    uint32_t n = r->sampling.n_biases;
    if (!p->sampled) return 0;
    memcpy(to, r->biases, n * sizeof(*to));
    uint32_t generated = l->posted + p->n_rows - r->n_prompt;
    for (uint32_t i = 0; generated < r->min_tokens && i < r->n_stops; i++)
        to[n++] = (struct link_bias){r->stops[i], -INFINITY};
    return n;
}

/* The lane's part of window `count`, as its place-th lane. Returns how many biases it has there. */
static uint32_t lane_post(struct head *h, const struct plan_lane *p, uint64_t count, uint32_t place,
                          uint32_t *tokens, struct link_bias *biases)
{
    struct lane *l = &h->lanes[p->lane];
    struct link_lane *to = &link_lanes(h->link, count)[place];
    if (l->copy_cells) tokens_copy(h, l);
    if (!p->fed) tokens_store(h, l, l->posted, l->posted + p->n_rows);
    *to = lane_describe(h, l, p);
    to->n_biases = biases_store(l, p, biases);
    l->copy_chunk = l->copy_cells = 0;
    if (p->fed) {
        to->fed_back = (uint32_t)(count - (l->last_window & POOL_WINDOW_ALL));
        to->fed_lane = l->last_place;
        *tokens = LINK_TOKEN_FED;
    } else {
        for (uint32_t k = 0; k < p->n_rows; k++)
            tokens[k] = request_token(l->request, l->posted + k);
    }
    h->flights[count % h->n_flights].lanes[place] =
        (struct flight_lane){p->lane, p->n_rows, l->posted, l->serial, p->sampled};
    l->posted += p->n_rows;
    if (l->posted >= l->alike) l->alike = request_alike(l->request, l->posted);
    l->in_flight++;
    l->last_window = pool_window(h->life, count);
    l->last_place = place;
    return to->n_biases;
}

static void post(struct head *h, const struct plan *plan)
{
    uint64_t count = h->posted + 1;
    struct flight *f = &h->flights[count % h->n_flights];
    uint32_t *tokens = link_tokens(h->link, count), n_biases = 0;
    bool fed = false;
    *f = (struct flight){
        .group = plan->group, .n_lanes = plan->n_lanes, .posted_us = now_us(), .lanes = f->lanes};
    for (uint32_t i = 0; i < plan->n_lanes; i++) {
        const struct plan_lane *p = &plan->lanes[i];
        n_biases += lane_post(h, p, count, i, tokens, link_biases(h->link, count) + n_biases);
        tokens += p->n_rows;
        bool generated = p->fed || h->lanes[p->lane].state == LANE_DECODE;
        *(generated ? &f->n_generated : &f->n_prompt) += p->n_rows;
        fed = fed || p->fed;
    }
    *link_slot(h->link, count) = (struct link_window){.number = pool_window(h->life, count),
                                                      .n_rows = plan->n_rows,
                                                      .n_lanes = plan->n_lanes,
                                                      .n_biases = n_biases};
    if (fed) shm_store_u64(&h->pool->page->fed, h->pool->page->fed + 1);
    h->flying[plan->group]++;
    h->next_group = plan->group + 1;
    h->posted = count;
    bell_ring(link_bell(h->link, 0), (uint32_t)count);
    if (fed) DEATH_POINT("fed-posted");
}

void windows_post(struct head *h)
{
    const struct link_header *link = &h->link->h;
    schedule_balance(h->lanes, h->setup.n_lanes, link->n_stages);
    while (h->posted - h->done < link->n_slots) {
        bool others = schedule_generates(h->lanes, h->setup.n_lanes);
        struct schedule s = {.n_groups = link->n_stages,
                             .max_rows = link->max_rows,
                             .max_lanes = link->max_lanes,
                             .piece = share_piece(&h->share, others, h->setup.piece),
                             .next_group = h->next_group};
        memcpy(s.flying, h->flying, sizeof(s.flying));
        struct plan plan = {.lanes = h->plan};
        if (!schedule_next(&s, h->lanes, h->setup.n_lanes, &plan)) return;
        post(h, &plan);
    }
}

/* ---- collecting ---- */

/* A piece of the prompt is read: who asked is told, before it gets a token. */
static void tell_read(struct head *h, const struct lane *l, const struct flight_lane *f,
                      const struct link_probs *probs)
{
    const struct request *r = l->request;
    if (f->pos >= r->n_prompt || !(r->progress || r->prompt_probs)) return;
    uint32_t end = f->pos + f->n_rows;
    /* The row at n_prompt - 1 tells of the first generated token. */
    uint32_t n = r->prompt_probs ? min_u32(end, r->n_prompt - 1) - f->pos : 0;
    gateways_read(h->gateways, r, min_u32(end, r->n_prompt), f->pos + 1, probs, n);
}

static void token_take(struct head *h, struct lane *l, uint32_t token,
                       const struct link_probs *probs)
{
    struct request *r = l->request;
    if (l->state == LANE_PROMPT) (void)lane_move(l, LANE_READ);
    if (request_stops_at(r, token)) {
        struct ending e = {.reason = CISTERN__REASON__STOP, .stop_token = token};
        admission_end(h, l, &e, lane_cells(l), false);
        return;
    }
    r->words[r->n_tokens++] = token | POOL_TOKEN_GENERATED;
    l->known = r->n_tokens;
    if (l->posted == l->known) tokens_store(h, l, l->known - 1, l->known); /* it was fed */
    gateways_token(h->gateways, r, probs);
    if (r->n_tokens < r->max) return;
    struct ending e = {.reason = CISTERN__REASON__LENGTH};
    admission_end(h, l, &e, lane_cells(l), false);
}

static void collect(struct head *h, uint64_t count)
{
    struct flight *f = &h->flights[count % h->n_flights];
    const uint32_t *results = link_results(h->link, count);
    const struct link_probs *probs = link_probs(h->link, count);
    h->flying[f->group]--;
    for (uint32_t i = 0; i < f->n_lanes; i++) {
        struct lane *l = &h->lanes[f->lanes[i].lane];
        const struct link_probs *own = probs;
        uint32_t token = results[i];
        probs += f->lanes[i].n_rows;
        if (!lane_is_active(l) || l->serial != f->lanes[i].serial) continue; /* ended meanwhile */
        l->in_flight--;
        l->done += f->lanes[i].n_rows;
        tell_read(h, l, &f->lanes[i], own);
        if (!f->lanes[i].sampled) continue;
        if (token >= h->setup.card.n_vocab) {
            log_error("the last stage sampled token %u of a vocabulary of %u; this worker ends",
                      token, h->setup.card.n_vocab);
            _exit(1);
        }
        token_take(h, l, token, own + f->lanes[i].n_rows - 1);
    }
}

/* Time of the next windows, as the pipeline gives them: from their posting, or from the one before.
 * A head that is late finds several back each time. */
static void measure(struct head *h, uint32_t back, uint64_t now)
{
    const struct flight *first = &h->flights[(h->done + 1) % h->n_flights];
    struct share_windows w = {.n = back, .us = now - max_u64(first->posted_us, h->back_us)};
    for (uint32_t i = 0; i < back; i++) {
        const struct flight *f = &h->flights[(h->done + 1 + i) % h->n_flights];
        w.n_generated += f->n_generated;
        w.n_prompt += f->n_prompt;
    }
    share_measured(&h->share, &w);
}

void windows_collect(struct head *h)
{
    uint32_t back = bell_count(link_bell(h->link, h->link->h.n_stages)) - (uint32_t)h->done;
    if (back > h->posted - h->done) {
        log_error("the last stage has finished windows that were never posted; this worker ends");
        _exit(1);
    }
    uint64_t now = now_us();
    if (back) measure(h, back, now);
    if (back) h->back_us = now;
    for (; back; back--)
        collect(h, ++h->done);
}
