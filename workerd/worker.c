/* SPDX-License-Identifier: MIT */
/*
 * The life of a worker: load (on the device thread), tie to poold, attach, READY, then lives of the
 * pipeline as poold hands out links, until SIGTERM. Owns loop, pool client, stage and, on stage 0,
 * the head; everything here is the loop thread's.
 *
 * poold may die and come back at any time: memory and windows go on, only the attach is said again.
 */
#include "workerd/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "common/log.h"
#include "common/pool_client.h"
#include "common/system.h"
#include "workerd/lives.h"
#include "workerd/split.h"

enum {
    BEAT_US = 250000,   /* a fortieth of the default worker.stuck_ms */
    STOP_US = 2000000,  /* SIGTERM to exit at most, a window in hand not counted */
    TAKEN_US = 1000000, /* a predecessor that is being killed is waited for by poold itself */
    PHASE_STARTING = 1, /* Heartbeat.phase */
    PHASE_SERVING = 2,
};

/* poold's answer to the attach, kept until the files are here as well. */
struct attach_answer {
    bool here;
    uint64_t pool_id;
    uint32_t *rows;
    size_t n_rows;
};

struct worker {
    const struct config *config;
    struct worker_place place;
    uint64_t self; /* incarnation */
    struct loop *loop;
    struct loop_source *signals, *beat, *stop_timer;
    struct pool_client *client;
    struct gguf *gguf;
    struct stage *stage;
    struct head *head; /* stage 0's, once loaded */
    struct lives lives;
    struct why *why; /* of what ends the loop */

    uint32_t first_layer, n_layers, context;
    char fingerprint[65], variant[32], device[32], endpoint[160], status[128];

    bool connected, attached, ready, stopping;
    uint64_t attach_number;
    struct attach_answer answer;
    char *way;            /* of activations, as the device thread said last; NULL: nothing yet */
    uint64_t taken_since; /* when the place was first found taken, or 0 */
};

/* Whether that is news. */
__attribute__((format(printf, 2, 3))) static bool status_set(struct worker *w, const char *format,
                                                             ...)
{
    char text[sizeof(w->status)];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (strcmp(text, w->status) == 0) return false;
    memcpy(w->status, text, sizeof(text));
    (void)sd_notifyf(0, "STATUS=%s", text);
    return true;
}

/* ---- to poold ---- */

static void beat_send(struct worker *w)
{
    Cistern__Heartbeat beat = CISTERN__HEARTBEAT__INIT;
    beat.phase = w->attached ? PHASE_SERVING : PHASE_STARTING;
    beat.percent = (uint32_t)stage_progress(w->stage);
    if (w->attached) lives_beat(&w->lives, &beat);
    if (w->way) beat.activations = w->way;
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.body_case = CISTERN__ENVELOPE__BODY_HEARTBEAT;
    m.heartbeat = &beat;
    (void)pool_client_send(w->client, &m); /* the next one follows soon */
}

static void geometry_fill(const struct worker *w, const struct model_facts *f, Cistern__Geometry *g)
{
    g->n_layers = f->n_layers;
    g->n_kv_heads = f->n_kv_heads;
    g->head_dim = f->head_dim;
    g->kv = w->config->pool.kv;
    g->block_cells = f->block_cells;
    g->context_tokens = w->context;
    g->block_bytes = f->block_bytes;
    g->fingerprint = (char *)w->fingerprint;
    g->arithmetic = (char *)f->arithmetic;
}

static void attach_send(struct worker *w)
{
    const struct model_facts *f = stage_facts(w->stage);
    if (!w->connected || w->attached || !f) return;
    if (w->place.stage == 0 && !w->head) return; /* loaded a moment ago: its head comes first */
    Cistern__Geometry geometry = CISTERN__GEOMETRY__INIT;
    Cistern__AttachWorker a = CISTERN__ATTACH_WORKER__INIT;
    CLEANUP(freep) uint32_t *rows = NULL;
    CLEANUP(freep) uint64_t *pending = NULL;
    geometry_fill(w, f, &geometry);
    a.pipeline = w->place.pipeline;
    a.stage = w->place.stage;
    a.n_stages = w->config->worker.stages;
    a.first_layer = w->first_layer;
    a.n_layers = w->n_layers;
    a.geometry = &geometry;
    a.max_rows = w->lives.max_rows;
    a.max_lanes = w->lives.max_lanes;
    a.n_embd = f->n_embd;
    if (w->head) {
        a.endpoint = w->endpoint;
        a.n_rows = head_rows(w->head, &rows);
        a.rows = rows;
        a.n_pending = head_pending(w->head, &pending);
        a.pending = pending;
    }
    Cistern__Envelope m = CISTERN__ENVELOPE__INIT;
    m.number = w->attach_number = pool_client_number(w->client);
    m.body_case = CISTERN__ENVELOPE__BODY_ATTACH_WORKER;
    m.attach_worker = &a;
    int r = pool_client_send(w->client, &m);
    if (r < 0) w->attach_number = 0; /* the next beat tries again */
}

static void status_look(struct worker *w)
{
    if (!stage_facts(w->stage)) {
        (void)status_set(w, "loading layers %u-%u: %d%%", w->first_layer,
                         w->first_layer + w->n_layers - 1, stage_progress(w->stage));
    } else if (!w->attached) {
        bool news = status_set(w, "waiting for poold at %s", w->config->run.dir);
        if (news && !w->ready) log_info("%s", w->status);
    } else {
        (void)status_set(w, w->lives.live ? "serving life %u" : "waiting for the other stages",
                         w->lives.life);
    }
}

static void on_beat(void *arg)
{
    struct worker *w = arg;
    status_look(w);
    lives_look(&w->lives);
    if (!w->connected) return;
    beat_send(w);
    if (!w->attached && w->attach_number == 0) attach_send(w);
    if (w->head && w->attached) head_tick(w->head);
}

static void fail(struct worker *w, int r, const char *text)
{
    (void)why_set(w->why, r, "%s", text);
    loop_stop(w->loop, r);
}

/* ---- from poold ---- */

static void on_connected(void *arg)
{
    struct worker *w = arg;
    w->connected = true;
    w->attach_number = 0;
    beat_send(w);
    attach_send(w);
}

static void on_lost(void *arg)
{
    struct worker *w = arg;
    log_warn("poold is gone; windows go on, its return is waited for");
    w->connected = w->attached = w->answer.here = false;
    if (w->head) head_pool_lost(w->head);
}

/* The answer and the files travel apart: attached is who has both. */
static void attach_complete(struct worker *w)
{
    struct attach_answer *a = &w->answer;
    if (!a->here || !w->lives.pool || w->lives.pool->pool_id != a->pool_id) return;
    CLEANUP(freep) uint32_t *rows = TAKE(a->rows);
    a->here = false;
    w->attached = true;
    w->taken_since = 0;
    beat_send(w);
    if (w->head) head_attached(w->head, rows, a->n_rows);
    if (w->ready) return;
    w->ready = true;
    log_info("layers %u-%u are attached as stage %u of pipeline %u: %s", w->first_layer,
             w->first_layer + w->n_layers - 1, w->place.stage, w->place.pipeline,
             stage_facts(w->stage)->device);
    (void)sd_notify(0, "READY=1");
}

static void on_files(void *arg, const struct lifeline_files *f, int *fds, uint32_t n_fds)
{
    struct worker *w = arg;
    struct why why = {0};
    int r = lives_files(&w->lives, f, fds, n_fds, &why);
    for (uint32_t i = 0; i < n_fds; i++)
        closep(&fds[i]);
    if (r < 0) return fail(w, r, why.text);
    struct lifeline_arena arena;
    int fd = -1;
    bool held = lives_arena(&w->lives, &arena, &fd);
    pool_client_hold(w->client, held ? &arena : NULL, fd);
    attach_complete(w);
}

static void on_attached(struct worker *w, const Cistern__Attached *m)
{
    free(w->answer.rows);
    w->answer = (struct attach_answer){.here = true, .pool_id = m->pool_id, .n_rows = m->n_rows};
    w->answer.rows = xcalloc(m->n_rows, sizeof(*m->rows)); /* a message's bound is theirs */
    if (m->n_rows) memcpy(w->answer.rows, m->rows, m->n_rows * sizeof(*m->rows));
    attach_complete(w);
}

/* Whether a refused attach is to be said again: the place may be held by a predecessor whose death
 * is being confirmed. */
static bool attach_again(struct worker *w, Cistern__Code code)
{
    if (code == CISTERN__CODE__NOT_READY || code == CISTERN__CODE__STALE) return true;
    if (code != CISTERN__CODE__TAKEN) return false;
    if (!w->taken_since) w->taken_since = now_us();
    return now_us() - w->taken_since < TAKEN_US;
}

static void on_refused_message(struct worker *w, uint64_t number, const Cistern__Refused *m)
{
    if (number == 0 || number != w->attach_number) {
        log_debug("poold refused message %" PRIu64 ": %s", number, m->text);
        return;
    }
    w->attach_number = 0; /* the next beat attaches again */
    if (!attach_again(w, m->code)) fail(w, -EPROTO, m->text);
}

static void on_died(struct worker *w, const Cistern__Died *m)
{
    if (m->role == POOL_ROLE_WORKER) lives_died(&w->lives, m->incarnation);
    if (m->role == POOL_ROLE_GATEWAY && w->head) head_gateway_died(w->head, m->incarnation);
}

static void on_message(void *arg, const Cistern__Envelope *m)
{
    struct worker *w = arg;
    if (w->head && head_answer(w->head, m)) return;
    switch (m->body_case) {
    case CISTERN__ENVELOPE__BODY_ATTACHED:
        if (m->number == w->attach_number) on_attached(w, m->attached);
        return;
    case CISTERN__ENVELOPE__BODY_REFUSED:
        on_refused_message(w, m->number, m->refused);
        return;
    case CISTERN__ENVELOPE__BODY_DIED:
        on_died(w, m->died);
        return;
    default:
        return;
    }
}

static void on_refused(void *arg, const char *text) { fail(arg, -ECONNREFUSED, text); }

/* ---- start ---- */

static void on_drained(void *arg)
{
    struct worker *w = arg;
    loop_stop(w->loop, 0);
}

static const char *model_name(const struct worker *w, const struct model_facts *f)
{
    if (w->config->model.name[0]) return w->config->model.name;
    if (f->name[0]) return f->name;
    const char *slash = strrchr(w->config->model.path, '/');
    return slash ? slash + 1 : w->config->model.path;
}

/* The number of "cuda:N". What else it may be is the model's business. */
static int cuda_device(const char *name)
{
    return strncmp(name, "cuda:", 5) == 0 ? atoi(name + 5) : CUDA_HOST_NO_DEVICE;
}

/* Where stages differ, the smallest of their windows holds for all. */
static uint32_t piece_rows(const struct worker *w)
{
    if (w->config->worker.piece) return w->config->worker.piece;
    return cuda_device(w->device) == CUDA_HOST_NO_DEVICE ? 256 : 512;
}

/* A GPU reads all weights for a few rows: as measured on an H200, 128 take it little more than 16.
 */
static uint32_t piece_least(const struct worker *w)
{
    return cuda_device(w->device) == CUDA_HOST_NO_DEVICE ? 16 : 128;
}

static int head_start(struct worker *w)
{
    const struct model_facts *f = stage_facts(w->stage);
    struct head_setup setup = {
        .loop = w->loop,
        .pool_client = w->client,
        .endpoint = w->endpoint,
        .self = w->self,
        .pipeline = w->place.pipeline,
        .n_lanes = w->config->worker.lanes,
        .piece = piece_rows(w),
        .prompt_share = w->config->worker.prompt_share,
        .piece_least = piece_least(w),
        .reserve_all = w->config->pool.admission == POOL_ADMISSION_FULL,
        .default_tokens = w->config->pool.default_tokens,
        .trace_all = w->config->worker.trace_all,
        .feed = w->config->worker.feed,
        .exact_prefix = w->config->worker.exact_prefix,
        .card = {.name = model_name(w, f),
                 .arch = f->arch,
                 .fingerprint = w->fingerprint,
                 .context_tokens = w->context,
                 .n_ctx_train = f->n_ctx_train,
                 .n_vocab = f->n_vocab,
                 .n_lanes = w->config->worker.lanes},
        .drained = on_drained,
        .arg = w,
    };
    int r = head_new(&setup, w->why, &w->head);
    if (r == 0) w->lives.head = w->head;
    return r;
}

/* The model is loaded, or the device thread has taken up a life, or says the way of activations. */
static void on_news(void *arg)
{
    struct worker *w = arg;
    char *way = stage_take_way(w->stage);
    if (way) {
        free(w->way);
        w->way = way;
    }
    if (w->attached) return beat_send(w);
    if (w->place.stage == 0 && !w->head) {
        int r = head_start(w);
        if (r < 0) return loop_stop(w->loop, r);
    }
    if (w->attach_number == 0) attach_send(w);
}

static void on_signal(void *arg, int signal)
{
    struct worker *w = arg;
    log_info("%s: stopping", signal == SIGINT ? "SIGINT" : "SIGTERM");
    (void)sd_notify(0, "STOPPING=1");
    if (w->stopping || !w->head) return loop_stop(w->loop, 0);
    w->stopping = true;
    (void)loop_set_timer(w->stop_timer, STOP_US, 0);
    head_drain(w->head);
}

static int stage_start(struct worker *w)
{
    const struct config *c = w->config;
    bool last = w->place.stage + 1 == c->worker.stages;
    bool own_cpus = c->worker.cpus[0];
    struct stage_setup setup = {
        .gguf = w->gguf,
        .want = {.first_layer = w->first_layer,
                 .n_layers = w->n_layers,
                 .precision = c->worker.precision,
                 .kv = c->pool.kv,
                 .max_rows = c->worker.lanes + piece_rows(w),
                 .max_lanes = c->worker.lanes,
                 .context_tokens = w->context,
                 .n_threads = c->worker.threads ? c->worker.threads : usable_cores(),
                 .cpus = own_cpus ? c->worker.cpus : NULL,
                 .may_spin = own_cpus,
                 .variant = config_choice(c, "worker", "variant", w->variant),
                 .device = w->device,
                 .memory_limit = c->worker.memory_limit,
                 .kv_resident = c->worker.kv_resident},
        .stage = w->place.stage,
        .n_stages = c->worker.stages,
        .peer = c->worker.peer,
        .trace = last && c->worker.trace[0] ? c->worker.trace : NULL,
        .news = on_news,
        .arg = w,
    };
    int r = stage_new(w->loop, &setup, w->why, &w->stage);
    if (r < 0) return r;
    w->lives = (struct lives){
        .pipeline = w->place.pipeline,
        .stage = w->place.stage,
        .n_stages = c->worker.stages,
        .first_layer = w->first_layer,
        .n_layers = w->n_layers,
        .context = w->context,
        .max_rows = setup.want.max_rows,
        .max_lanes = setup.want.max_lanes,
        .cuda_device = cuda_device(w->device),
        .device = w->stage,
    };
    return 0;
}

/* Which layers, on which device. */
static int place_choose(struct worker *w, uint32_t n_layers)
{
    const struct config *c = w->config;
    if (config_device(c->worker.device, w->place.stage, w->device, sizeof(w->device)) < 0)
        return why_set(w->why, -EINVAL, "worker.device = %s: no device for stage %u",
                       c->worker.device, w->place.stage);
    if (strcmp(c->worker.layers, "free") != 0)
        return config_layers(c, w->place.stage, n_layers, w->why, &w->first_layer, &w->n_layers);
    struct split_want want = {
        .run_dir = c->run.dir,
        .pipeline = w->place.pipeline,
        .stage = w->place.stage,
        .n_stages = c->worker.stages,
        .n_layers = n_layers,
        .gguf = w->gguf,
        .fingerprint = w->fingerprint,
        .memory_limit = c->worker.memory_limit,
        .devices = c->worker.device,
    };
    return split_layers(&want, w->why, &w->first_layer, &w->n_layers);
}

static int model_open(struct worker *w)
{
    const struct config *c = w->config;
    struct model_facts facts = {0};
    if (!c->model.path[0])
        return why_set(w->why, -EINVAL, "model.path is not set: name the GGUF file to be served");
    int r = gguf_open(c->model.path, w->why, &w->gguf);
    if (r == 0) r = model_probe(w->gguf, w->why, &facts);
    if (r < 0) return r;
    r = gguf_fingerprint(w->gguf, w->fingerprint);
    if (r < 0) return why_set(w->why, r, "%s can't be read: %s", c->model.path, strerror(-r));
    r = place_choose(w, facts.n_layers);
    if (r < 0) return r;
    w->context = c->model.context ? c->model.context : facts.n_ctx_train;
    if (w->context > facts.n_ctx_train)
        log_warn("model.context = %u: the model was made for %u tokens, expect nonsense past that",
                 w->context, facts.n_ctx_train);
    return 0;
}

static void on_stop_timer(void *arg)
{
    struct worker *w = arg;
    log_warn("not all windows and rows were finished within %d s", STOP_US / 1000000);
    loop_stop(w->loop, 0);
}

static int loop_start(struct worker *w)
{
    static const int signals[] = {SIGTERM, SIGINT};
    int r = loop_new(&w->loop);
    if (r == 0)
        r = loop_add_signals(w->loop, signals, ARRAY_LEN(signals), on_signal, w, &w->signals);
    if (r == 0) r = loop_add_timer(w->loop, on_beat, w, &w->beat);
    if (r == 0) r = loop_add_timer(w->loop, on_stop_timer, w, &w->stop_timer);
    if (r == 0) r = loop_set_timer(w->beat, BEAT_US, BEAT_US);
    return r < 0 ? why_set(w->why, r, "cannot make the event loop: %s", strerror(-r)) : 0;
}

static int client_start(struct worker *w)
{
    struct pool_client_events events = {
        .connected = on_connected,
        .lost = on_lost,
        .message = on_message,
        .files = on_files,
        .refused = on_refused,
        .arg = w,
    };
    return pool_client_new(w->loop, w->config->run.dir, w->self, POOL_ROLE_WORKER, &events, w->why,
                           &w->client);
}

static int start(struct worker *w)
{
    int n = snprintf(w->endpoint, sizeof(w->endpoint), "ipc://%s/head-%u", w->config->run.dir,
                     w->place.pipeline);
    if (n < 0 || (size_t)n >= sizeof(w->endpoint))
        return why_set(w->why, -ENAMETOOLONG, "run.dir = %s is too long for a socket's path",
                       w->config->run.dir);
    /* Signals first: a device's driver that is asked for its free memory starts threads. */
    int r = loop_start(w);
    if (r == 0) r = model_open(w);
    /* A head that starts before poold needs a place for its socket. */
    if (r == 0 && mkdir(w->config->run.dir, 0700) < 0 && errno != EEXIST)
        r = why_set(w->why, -errno, "run.dir = %s: cannot be made: %s", w->config->run.dir,
                    strerror(errno));
    if (r == 0) r = stage_start(w);
    if (r == 0) r = client_start(w);
    return r;
}

int worker_run(const struct config *config, const struct worker_place *place, struct why *why)
{
    struct worker w = {.config = config, .place = *place, .self = incarnation_new(), .why = why};
    int r = start(&w);
    if (r == 0)
        r = loop_run(w.loop);
    else if (r == -ECANCELED)
        r = 0; /* asked to end before there was anything to end */
    head_free(w.head);
    pool_client_free(w.client);
    bool ended = !w.stage || stage_stop(w.stage, STOP_US / 1000);
    if (!ended) log_warn("the device thread did not end within %d s", STOP_US / 1000000);
    /* A GPU's memory and what is pinned for it go with the process, at once. Given back piece by
     * piece they take seconds where much is pinned or the driver is busy: silence, for which poold
     * kills, and until the end nothing of this worker's goes on elsewhere. */
    if (!ended || (w.stage && cuda_device(w.device) != CUDA_HOST_NO_DEVICE)) {
        if (r < 0 && why->text[0]) log_error("%s", why->text);
        _exit(r < 0);
    }
    stage_free(w.stage);
    lives_fini(&w.lives);
    free(w.answer.rows);
    free(w.way);
    gguf_free(w.gguf);
    loop_free(w.loop);
    return r;
}
