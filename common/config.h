/* SPDX-License-Identifier: MIT */
#ifndef COMMON_CONFIG_H
#define COMMON_CONFIG_H
/*
 * cistern.conf: one INI file for all programs, each key one line of the table in config_keys.c
 * (name, type, range, default, what it is for). Every program reads and checks the whole file, so a
 * mistyped key is found by whichever program starts first. Read once at start, then immutable.
 */
#include <stdbool.h>

#include "common/base.h"

/* What happens to a conversation that needs room when there is none. */
enum pool_when_dry {
    POOL_DRY_END,  /* a new one is refused, a running one ends with what it has */
    POOL_DRY_WAIT, /* it waits; older ones take from younger ones */
};

enum pool_admission { POOL_ADMISSION_GROW, POOL_ADMISSION_FULL };

enum pool_lock { POOL_LOCK_AUTO, POOL_LOCK_YES, POOL_LOCK_NO };

/* Who may go on from K/V of others' prompts. */
enum gateway_share { GATEWAY_SHARE_ALL, GATEWAY_SHARE_KEY };

/* Whether activations go straight to the next stage's device. */
enum worker_peer {
    WORKER_PEER_AUTO, /* where that can be; else through host memory, which is said */
    WORKER_PEER_OFF,
    WORKER_PEER_ON, /* a worker that can't ends */
};

struct config {
    struct {       /* what all programs share */
        char *dir; /* sockets; private, 0700 */
        uint32_t log_level;
    } run;
    struct {
        char *path;       /* the GGUF file */
        char *name;       /* what clients see; empty: general.name, else the file's name */
        uint32_t context; /* tokens of the longest conversation; 0: the model's own */
    } model;
    struct {
        char *dir;          /* memory files; on tmpfs */
        uint64_t cells;     /* N, rounded up to chunks; 0: the identity layout */
        uint32_t pipelines; /* that the identity layout has ranges for */
        uint32_t chunk;     /* C, cells */
        uint32_t grow;      /* chunks asked for at once */
        uint32_t conversations;
        uint32_t kv;             /* enum pool_kv */
        uint32_t memory;         /* enum pool_memory of proto/pool_shm.h */
        uint32_t lock;           /* enum pool_lock */
        uint32_t threads;        /* of prefault; 0: all cores */
        uint32_t admission;      /* enum pool_admission */
        uint32_t default_tokens; /* of an answer without max_tokens, for admission = full */
        uint32_t when_dry;       /* enum pool_when_dry */
        uint32_t attach_ms;      /* after a restart: who has not attached by then is killed */
    } pool;
    struct {
        uint32_t stages;  /* of the pipeline */
        char *layers;     /* "auto", "free" or one range a stage: "0-14,15-29" */
        uint32_t threads; /* compute threads; 0: all cores */
        char *cpus;       /* "0-3,8"; empty: no pinning */
        uint32_t lanes;
        uint32_t piece;        /* prompt tokens a window at most */
        uint32_t prompt_share; /* percent of a window's time, while others are answered */
        uint32_t precision;    /* enum model_precision: 0 int8, 1 float32 */
        uint32_t variant;      /* index into the choices: auto, avx512, avx2, plain */
        char *device;          /* "cpu" or "cuda:N"; or one a stage, "cuda:0,cuda:1" */
        uint32_t peer;         /* enum worker_peer */
        uint64_t memory_limit; /* of a GPU: bytes of its memory at most; 0: all that is free */
        uint64_t kv_resident;  /* of a GPU: cells kept in its memory as well, at most */
        bool feed;             /* a next window starts with tokens that the head has not seen */
        uint32_t stuck_ms;     /* serving, and silent or not going on for this long, is stuck */
        uint32_t start_ms;     /* starting and silent for this long is stuck */
        char *trace;           /* debug: a file that gets one line a row of logits; empty: none */
        bool trace_all;        /* with trace: also rows that are not sampled */
        bool exact_prefix;     /* only prompt rows are reused by another request */
    } worker;
    struct {
        uint32_t queue_wait_ms;  /* that a request waits for room, with pool.when_dry = wait */
        char *listen;            /* address */
        uint32_t port;           /* 0: the kernel chooses */
        uint32_t queue;          /* requests beyond the lanes before 503 queue_full */
        uint64_t body_bytes;     /* of a request, at most */
        uint32_t connections;    /* at most */
        uint32_t slow_ms;        /* a request must be in by then */
        uint32_t ping_ms;        /* of silence after which a stream says that it goes on */
        uint32_t default_tokens; /* without max_tokens; 0: up to the context */
        uint64_t out_bytes;      /* unsent bytes of one stream before its reader counts as gone */
        uint32_t resume_ms;      /* a request without a pipeline ends after this time */
        char *hosts;             /* names allowed in the Host header besides this machine's own */
        char *keys, *keys_file;  /* that clients must show; both empty: none is asked for */
        uint32_t key_requests;   /* generations of one key at a time; 0: any */
        uint32_t key_queue;      /* of these, those without a lane; 0: any */
        uint32_t share_prefixes; /* enum gateway_share */
        char *cors_origins;      /* pages in browsers that may ask */
        bool strict_model;       /* a request must name the model as it is served */
        char *slot_dir;          /* where slots are saved; empty: they are not */
        char *poolctl;           /* that saves them; empty: the one beside the gateway */
    } gateway;
};

enum config_type { CONFIG_U32, CONFIG_U64, CONFIG_BOOL, CONFIG_STRING, CONFIG_CHOICE };

struct config_key {
    const char *section, *name;
    enum config_type type;
    size_t offset;          /* in struct config */
    uint64_t min, max;      /* of numbers */
    const char *choices;    /* of CONFIG_CHOICE: "auto|yes|no" */
    const uint32_t *values; /* of CONFIG_CHOICE: the value of each choice, or NULL: 0, 1, 2... */
    const char *preset;     /* as one would write it in the file */
    const char *help;       /* one sentence */
};
extern const struct config_key config_keys[];
extern const size_t config_n_keys;

/* path NULL: presets only. sets: "section.key=value", applied after the file. Every failure names
 * file, line, key and what would be right (the nearest key for an unknown one). */
int config_load(const char *path, char *const *sets, size_t n_sets, struct why *why,
                struct config **ret);
void config_free(struct config *c);
static inline void config_freep(struct config **c) { config_free(*c); }

/* The command line that all daemons share: --config FILE, --set section.key=value, --help,
 * --version and the program's own options, which are one table. */
struct config_option {
    const char *name; /* "stage" for --stage N */
    uint32_t *value;  /* a number, at most max */
    uint32_t max;
    const char *help;
};
/* Returns 0 with the configuration, 1 when --help or --version was answered (end with 0), or a
 * negative errno with why. */
int config_from_args(int argc, char **argv, const char *program, const char *what,
                     const struct config_option *options, size_t n_options, struct why *why,
                     struct config **ret);

/* First and number of layers of a stage: an even split (the last stages get the remainder), or the
 * stage-th range of worker.layers. With "free" only the workers know better (workerd/split.h). */
int config_layers(const struct config *c, uint32_t stage, uint32_t n_layers, struct why *why,
                  uint32_t *ret_first, uint32_t *ret_n);

/* The device of a stage in worker.device: "cuda:0,cuda:1", or one for all of them. -EINVAL when
 * there is none, or it is too long. */
int config_device(const char *devices, uint32_t stage, char *ret, size_t room);

/* The word of a choice as it is now: config_choice(c, "worker", "variant") is "auto". */
const char *config_choice(const struct config *c, const char *section, const char *name,
                          char ret[32]);

#endif
