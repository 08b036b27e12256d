/* SPDX-License-Identifier: MIT */
/*
 * The head's windows: writes token ids into the pool, a window into its slot, rings stage 0, and
 * takes sampled tokens back. Called by head_step and when the last stage rings. What a window holds
 * is decided in schedule.c.
 *
 * Order of the stores: token ids -> the head's word in the page -> the slot -> bell 0. Dead after
 * the ids: nobody counts them. Dead after the word: the stages' words are lower and hold. Dead
 * after the bell: the stages run the window, its row is closed when this death is confirmed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "workerd/head_state.h"

void windows_begin(struct head *h)
{
    h->posted = h->done = 0;
    h->next_group = 0;
    memset(h->busy, 0, sizeof(h->busy));
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

/* The ids and kinds of cells [from, to) of a lane, then the word that counts them. */
static void tokens_store(struct head *h, const struct lane *l, uint32_t from, uint32_t to)
{
    const struct pool_map *pool = h->pool;
    const struct request *r = l->request;
    for (uint32_t pos = from; pos < to; pos++) {
        uint64_t entry = pool_map_entry(pool, l->row, pos / pool->chunk_cells);
        uint64_t cell = cell_of(pool, entry, pos);
        uint32_t kind = pos < r->n_prompt ? 0 : POOL_TOKEN_GENERATED;
        if (cell < pool->n_cells) pool->tokens->cell[cell] = r->tokens[pos] | kind;
    }
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
        .next = end < r->n_tokens ? r->tokens[end] : LINK_NEXT_SAMPLED,
    };
}

/* What is added to the logits of the lane's sampled row; returns how many. The next token is known
 * of no lane with a window in flight, so what is generated so far is all that comes before it. */
static uint32_t biases_store(const struct lane *l, const struct plan_lane *p, struct link_bias *to)
{
    const struct request *r = l->request;
    uint32_t n = r->sampling.n_biases;
    if (!p->sampled) return 0;
    memcpy(to, r->biases, n * sizeof(*to));
    for (uint32_t i = 0; request_generated(r) < r->min_tokens && i < r->n_stops; i++)
        to[n++] = (struct link_bias){r->stops[i], -INFINITY};
    return n;
}

static void post(struct head *h, const struct plan *plan)
{
    uint64_t count = h->posted + 1, number = pool_window(h->life, count);
    struct flight *f = &h->flights[count % h->n_flights];
    struct link_lane *lanes = link_lanes(h->link, count);
    uint32_t *tokens = link_tokens(h->link, count), n_biases = 0;
    f->group = plan->group;
    f->n_lanes = plan->n_lanes;
    for (uint32_t i = 0; i < plan->n_lanes; i++) {
        const struct plan_lane *p = &plan->lanes[i];
        struct lane *l = &h->lanes[p->lane];
        if (l->copy_cells) tokens_copy(h, l);
        tokens_store(h, l, l->posted, l->posted + p->n_rows);
        lanes[i] = lane_describe(h, l, p);
        lanes[i].n_biases = biases_store(l, p, link_biases(h->link, count) + n_biases);
        n_biases += lanes[i].n_biases;
        l->copy_chunk = l->copy_cells = 0;
        memcpy(tokens, l->request->tokens + l->posted, p->n_rows * sizeof(*tokens));
        tokens += p->n_rows;
        f->lanes[i] = (struct flight_lane){p->lane, p->n_rows, l->posted, l->serial, p->sampled};
        l->posted += p->n_rows;
        l->in_flight++;
        l->last_window = number;
    }
    *link_slot(h->link, count) = (struct link_window){
        .number = number, .n_rows = plan->n_rows, .n_lanes = plan->n_lanes, .n_biases = n_biases};
    h->busy[plan->group] = true;
    h->next_group = plan->group + 1;
    h->posted = count;
    bell_ring(link_bell(h->link, 0), (uint32_t)count);
}

void windows_post(struct head *h)
{
    const struct link_header *link = &h->link->h;
    schedule_balance(h->lanes, h->setup.n_lanes, link->n_stages);
    while (h->posted - h->done < link->n_slots) {
        struct schedule s = {.n_groups = link->n_stages,
                             .max_rows = link->max_rows,
                             .max_lanes = link->max_lanes,
                             .piece = h->setup.piece,
                             .next_group = h->next_group};
        memcpy(s.busy, h->busy, sizeof(s.busy));
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
        admission_end(h, l, &e, l->posted, false);
        return;
    }
    r->tokens[r->n_tokens++] = token;
    l->known = r->n_tokens;
    gateways_token(h->gateways, r, probs);
    if (r->n_tokens < r->max) return;
    struct ending e = {.reason = CISTERN__REASON__LENGTH};
    admission_end(h, l, &e, l->posted, false);
}

static void collect(struct head *h, uint64_t count)
{
    struct flight *f = &h->flights[count % h->n_flights];
    const uint32_t *results = link_results(h->link, count);
    const struct link_probs *probs = link_probs(h->link, count);
    h->busy[f->group] = false;
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

void windows_collect(struct head *h)
{
    uint32_t back = bell_count(link_bell(h->link, h->link->h.n_stages)) - (uint32_t)h->done;
    if (back > h->posted - h->done) {
        log_error("the last stage has finished windows that were never posted; this worker ends");
        _exit(1);
    }
    for (; back; back--)
        collect(h, ++h->done);
}
