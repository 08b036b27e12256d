/* SPDX-License-Identifier: MIT */
/*
 * The gateway: HTTP in front, the heads of the pipelines behind, no weights. This file puts the
 * parts together, tells systemd how it stands, and ends the process in bounded time.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "common/log.h"
#include "gateway/gateway.h"
#include "gateway/routes.h"

enum {
    END_US = 2000000,    /* open answers have this long to be sent after SIGTERM */
    END_LOOK_US = 20000, /* how often it is looked whether they are */
    SPARE_FILES = 64,    /* descriptors beside the connections' */
};

struct daemon {
    struct gateway g;
    struct loop_source *signals, *watchdog, *end;
    uint64_t end_us; /* stopping: exit then at the latest */
};

uint32_t gateway_context(const struct gateway *g)
{
    uint32_t known = pipelines_context(g->pipelines);
    if (known) return known;
    return g->config->model.context ? g->config->model.context : g->model.n_ctx_train;
}

int gateway_can_serve(const struct gateway *g, struct fault *fault)
{
    if (g->stopping) return fault_set(fault, FAULT_DRAINING, NULL, "The server is going down.");
    uint32_t lanes = pipelines_lanes(g->pipelines);
    if (lanes == 0 && pipelines_drained(g->pipelines))
        return fault_set(fault, FAULT_DRAINING, NULL,
                         "All pipelines are drained; try again later.");
    if (lanes == 0 && pipelines_were_ready(g->pipelines))
        return fault_set(fault, FAULT_STAGE_LOST, NULL,
                         "A worker is gone and not yet back; try again soon.");
    if (lanes == 0)
        return fault_set(fault, FAULT_LOADING, NULL, "The model is being loaded; try again soon.");
    return 0;
}

int gateway_admits(const struct gateway *g, struct fault *fault)
{
    int r = gateway_can_serve(g, fault);
    if (r < 0 && !(fault->kind == FAULT_STAGE_LOST && pipelines_are_coming_back(g->pipelines)))
        return r;
    uint64_t places = (uint64_t)pipelines_lanes(g->pipelines) + g->config->gateway.queue;
    if (requests_in_flight(g->requests) < places) return 0;
    return fault_set(fault, FAULT_QUEUE_FULL, NULL,
                     "%llu requests are being served or wait; try again soon.",
                     (unsigned long long)places);
}

/* ---- how it stands ----------------------------------------------------------------------- */

/* Told only when it differs: a supervisor that is slow to read would hold us. */
static void tell_status(struct gateway *g)
{
    char status[sizeof(g->status)];
    (void)snprintf(status, sizeof(status), "%s; pipelines ready: %u",
                   pipelines_tied(g->pipelines) ? "tied to poold" : "poold is away",
                   pipelines_ready(g->pipelines));
    if (strcmp(status, g->status) == 0) return;
    memcpy(g->status, status, sizeof(status));
    (void)sd_notifyf(0, "STATUS=%s", status);
}

static void on_pipelines_changed(void *arg)
{
    struct gateway *g = arg;
    if (g->stopping) return;
    if (pipelines_tied(g->pipelines) && !g->ready_told) {
        g->ready_told = true;
        (void)sd_notify(0, "READY=1");
        log_info("ready");
    }
    tell_status(g);
}

static void on_pool_refused(void *arg, const char *text)
{
    struct gateway *g = arg;
    log_error("poold refuses this gateway: %s", text);
    loop_stop(g->loop, -ECONNREFUSED);
}

static void on_head_message(void *arg, struct pipeline *p, const Cistern__Envelope *m)
{
    struct gateway *g = arg;
    requests_message(g->requests, p, m);
}

static void on_head_lost(void *arg, struct pipeline *p)
{
    struct gateway *g = arg;
    requests_lost(g->requests, p);
}

static void on_watchdog(void *arg)
{
    (void)arg;
    (void)sd_notify(0, "WATCHDOG=1");
}

static int start_watchdog(struct daemon *d)
{
    uint64_t usec = 0;
    if (sd_watchdog_enabled(0, &usec) <= 0) return 0;
    int r = loop_add_timer(d->g.loop, on_watchdog, NULL, &d->watchdog);
    return r < 0 ? r : loop_set_timer(d->watchdog, usec / 2, usec / 2);
}

/* ---- the end ----------------------------------------------------------------------------- */

static void on_end_look(void *arg)
{
    struct daemon *d = arg;
    if (http_exchanges(d->g.http) == 0 || now_us() >= d->end_us) loop_stop(d->g.loop, 0);
}

/* What runs is told so; what is written has a moment to go out. */
static void on_signal(void *arg, int signal)
{
    struct daemon *d = arg;
    if (d->g.stopping) return;
    log_info("ending on signal %d", signal);
    (void)sd_notify(0, "STOPPING=1");
    d->g.stopping = true;
    d->end_us = now_us() + END_US;
    http_stop_listening(d->g.http);
    requests_end_all(d->g.requests, FAULT_DRAINING, "The server is going down.");
    tools_end_all(d->g.tools);
    (void)loop_set_timer(d->end, END_LOOK_US, END_LOOK_US);
}

/* ---- the beginning ----------------------------------------------------------------------- */

static char *model_name(const struct config *c, const struct gguf *f)
{
    struct gguf_str name;
    if (c->model.name[0]) return strdup(c->model.name);
    if (gguf_str(f, "general.name", &name) == 0 && name.bytes > 0)
        return strndup(name.at, name.bytes);
    const char *slash = strrchr(c->model.path, '/');
    return strdup(slash ? slash + 1 : c->model.path);
}

static uint32_t trained_context(const struct gguf *f)
{
    struct gguf_str arch;
    char key[128];
    uint64_t n = 0;
    if (gguf_str(f, "general.architecture", &arch) < 0) return 0;
    (void)snprintf(key, sizeof(key), "%.*s.context_length", (int)min_u64(arch.bytes, 64), arch.at);
    (void)gguf_u64(f, key, &n);
    return (uint32_t)min_u64(n, UINT32_MAX);
}

static int load_chat(struct gateway *g, const struct gguf *f, struct why *why)
{
    int r = chat_format_new(f, g->model.tokenizer, &g->model.why_no_chat, &g->model.chat);
    if (r == 0) return 0;
    if (r != -ENOENT)
        return why_set(why, r, "the chat template of %s can't be used: %s", gguf_path(f),
                       g->model.why_no_chat.text);
    log_warn("%s; chats are refused", g->model.why_no_chat.text);
    return 0;
}

static int load_model(struct gateway *g, struct why *why)
{
    CLEANUP(gguf_freep) struct gguf *f = NULL;
    if (!g->config->model.path[0])
        return why_set(why, -EINVAL, "model.path is not set; it names the GGUF file");
    int r = gguf_open(g->config->model.path, why, &f);
    if (r < 0) return r;
    r = gguf_fingerprint(f, g->model.fingerprint);
    if (r < 0) return why_set(why, r, "%s: cannot read it: %s", gguf_path(f), strerror(-r));
    g->model.name = model_name(g->config, f);
    g->model.n_ctx_train = trained_context(f);
    json_t *name = json_string(g->model.name);
    json_decref(name);
    if (!name)
        return why_set(why, -EINVAL, "the model's name is not UTF-8; model.name gives another");
    r = tokenizer_new(f, why, &g->model.tokenizer);
    return r < 0 ? r : load_chat(g, f, why);
}

/* A connection is a descriptor: as many as configured should fit. */
static void allow_connections(uint32_t connections)
{
    struct rlimit limit;
    rlim_t want = (rlim_t)connections + SPARE_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= want) return;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < want)
        log_warn("gateway.connections = %u, but the limit on open files is %llu", connections,
                 (unsigned long long)limit.rlim_cur);
}

static int open_back(struct gateway *g, struct why *why)
{
    struct pipelines_events events = {
        .message = on_head_message,
        .lost = on_head_lost,
        .changed = on_pipelines_changed,
        .refused = on_pool_refused,
        .arg = g,
    };
    int r = pipelines_new(g->loop, g->config, g->model.fingerprint, &events, why, &g->pipelines);
    if (r < 0) return r;
    struct requests_options o = {
        .loop = g->loop,
        .pipelines = g->pipelines,
        .resume_ms = g->config->gateway.resume_ms,
        .late_ms = g->config->gateway.ping_ms,
        .n_vocab = tokenizer_n_vocab(g->model.tokenizer),
    };
    return requests_new(&o, why, &g->requests);
}

static int open_front(struct gateway *g, struct why *why)
{
    const struct config *c = g->config;
    struct http_options o = {
        .listen = c->gateway.listen,
        .port = (uint16_t)c->gateway.port,
        .connections = c->gateway.connections,
        .slow_ms = c->gateway.slow_ms,
        .ping_ms = c->gateway.ping_ms,
        .body_bytes = c->gateway.body_bytes,
        .out_bytes = c->gateway.out_bytes,
        .serve = routes_serve,
        .too_large = routes_too_large,
        .over = routes_over,
        .arg = g,
    };
    int r = http_new(g->loop, &o, why, &g->http);
    if (r < 0) return r;
    bool brackets = strchr(c->gateway.listen, ':');
    log_info("listening on http://%s%s%s:%u", brackets ? "[" : "", c->gateway.listen,
             brackets ? "]" : "", http_port(g->http));
    return 0;
}

/* What saves slots, if they are to be. */
static int open_slots(struct gateway *g, struct why *why)
{
    struct stat st;
    const char *dir = g->config->gateway.slot_dir;
    if (!*dir) return 0;
    if (*dir != '/')
        return why_set(why, -EINVAL, "gateway.slot_dir = %s must be an absolute path", dir);
    if (stat(dir, &st) < 0) return why_set(why, -errno, "gateway.slot_dir = %s: %m", dir);
    if (!S_ISDIR(st.st_mode))
        return why_set(why, -ENOTDIR, "gateway.slot_dir = %s is no folder", dir);
    return tools_new(g->loop, g->config->gateway.poolctl, why, &g->tools);
}

static int start(struct daemon *d, struct why *why)
{
    struct gateway *g = &d->g;
    static const int signals[] = {SIGTERM, SIGINT};
    int r = loop_new(&g->loop);
    if (r == 0)
        r = loop_add_signals(g->loop, signals, ARRAY_LEN(signals), on_signal, d, &d->signals);
    if (r == 0) r = loop_add_timer(g->loop, on_end_look, d, &d->end);
    if (r == 0) r = start_watchdog(d);
    if (r < 0) return why_set(why, r, "cannot make the event loop: %s", strerror(-r));
    r = keys_new(g->config, why, &g->keys);
    if (r == 0) r = open_slots(g, why);
    if (r == 0) r = load_model(g, why);
    if (r == 0) r = open_back(g, why);
    if (r == 0) r = open_front(g, why);
    return r;
}

static void daemon_fini(struct daemon *d)
{
    struct gateway *g = &d->g;
    http_free(g->http);
    tools_free(g->tools);
    keys_free(g->keys);
    requests_free(g->requests);
    pipelines_free(g->pipelines);
    chat_format_free(g->model.chat);
    tokenizer_free(g->model.tokenizer);
    free(g->model.name);
    loop_free(g->loop);
    config_free(g->config);
}

/* Takes the configuration. */
static int run(struct config *config, struct why *why)
{
    struct daemon d = {
        .g = {.config = config, .started = time(NULL)}
    };
    (void)signal(SIGPIPE, SIG_IGN);
    allow_connections(config->gateway.connections);
    int r = start(&d, why);
    if (r == 0) r = loop_run(d.g.loop);
    daemon_fini(&d);
    return r;
}

int main(int argc, char **argv)
{
    struct why why = {.text = ""};
    struct config *config = NULL;
    log_init("gateway", LOG_LEVEL_INFO);
    int r =
        config_from_args(argc, argv, "gateway", "Cistern's HTTP server.", NULL, 0, &why, &config);
    if (r == 1) return 0;
    if (r == 0) r = run(config, &why);
    if (r < 0 && why.text[0]) log_error("%s", why.text);
    return r < 0;
}
