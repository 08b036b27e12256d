/* SPDX-License-Identifier: MIT */
#ifndef PROTO_POOL_SHM_H
#define PROTO_POOL_SHM_H
/*
 * The memory contract: what poold and the workers read and write of each other without a message.
 *
 * Five kinds of file, all made by poold, all bearing the pool's random id:
 *
 *   control   header, processes, pipelines, rows, chunk tables, chunk records. Written by poold
 *             only; everyone else has it read-only.
 *   tokens    one word a cell: token id and kind. Written by the head that the cell's row is
 *             bound to.
 *   page      one a (pipeline, stage): what that worker has completed. Written by that worker;
 *             outlives it.
 *   arena     one a stage: the K/V of its layers for all cells. Written by that stage's workers.
 *   link      one a life of a pipeline: the ring of windows, the bells and the inboxes
 *             (link_shm.h).
 *
 * Rules that hold everywhere: fixed-width fields, padding named, one writer a field, no locks, no
 * addresses. A number read from here came from another process: bound it before it indexes.
 * What a store means when its writer dies right after it is said at the field.
 *
 * Changing anything here raises POOL_SHM_VERSION; proto/README.md says what each version changed.
 */
#include <assert.h>
#include <stdint.h>

enum {
    POOL_SHM_VERSION = 6,
    POOL_PROCESSES_MAX = 128, /* process records; workers, gateways and tools together */
    POOL_PIPELINES_MAX = 8,
    POOL_STAGES_MAX = 16,
    POOL_RUNS_MAX = 1024,  /* runs of one arena: layers x kinds of one stage */
    POOL_TEXT_BYTES = 128, /* fingerprint, arithmetic, names: NUL-terminated text */
    POOL_RANKS = 3,        /* kinds of conversations that give back */
    POOL_CODES = 32,       /* kinds of refusals that are counted: room for cistern.proto's Code */
    POOL_LATENCIES = 12,   /* classes of an operation's time, the last one without an end */
};
#define POOL_NO_LANE UINT32_MAX /* of a body: no lane has run it since it was restored */

#define POOL_CONTROL_MAGIC UINT64_C(0x316c7274434e5443) /* "CTNCtrl1" */
#define POOL_TOKENS_MAGIC UINT64_C(0x316b6f54434e5443)  /* "CTNCTok1" */
#define POOL_PAGE_MAGIC UINT64_C(0x31676150434e5443)    /* "CTNCPag1" */
#define POOL_ARENA_MAGIC UINT64_C(0x316e7241434e5443)   /* "CTNCArn1" */

/* ---- words ------------------------------------------------------------------------------- */

/* A chunk table's entry: {chunk, generation}. Zero is the trash chunk, so a zeroed table is safe.
 */
static inline uint64_t pool_entry(uint32_t chunk, uint32_t generation)
{
    return (uint64_t)generation << 32 | chunk;
}
static inline uint32_t pool_entry_chunk(uint64_t entry) { return (uint32_t)entry; }
static inline uint32_t pool_entry_generation(uint64_t entry) { return (uint32_t)(entry >> 32); }

/* A page's word for a row: {lease, count of cells}. A word of another lease than the row's counts
 * as the row's base. */
static inline uint64_t pool_word(uint32_t lease, uint32_t cells)
{
    return (uint64_t)lease << 32 | cells;
}
static inline uint32_t pool_word_lease(uint64_t word) { return (uint32_t)(word >> 32); }
static inline uint32_t pool_word_cells(uint64_t word) { return (uint32_t)word; }

/* A window's number: {life of the pipeline, count within it}; numbers compare as integers. A stage
 * that takes nothing more of a life publishes {life, all}. */
#define POOL_WINDOW_ALL ((UINT64_C(1) << 40) - 1)
static inline uint64_t pool_window(uint32_t life, uint64_t count)
{
    return (uint64_t)life << 40 | (count & POOL_WINDOW_ALL);
}
static inline uint32_t pool_window_life(uint64_t window) { return (uint32_t)(window >> 40); }

/* A cell's word in the tokens file: the id in 31 bits, the kind (0 prompt, 1 generated) above. */
#define POOL_TOKEN_GENERATED UINT32_C(0x80000000)

/* Acquire and release behind functions, since this header is also read by C++ compilers. */
static inline uint64_t shm_load_u64(const uint64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
static inline void shm_store_u64(uint64_t *at, uint64_t v)
{
    __atomic_store_n(at, v, __ATOMIC_RELEASE);
}
static inline uint32_t shm_load_u32(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
static inline void shm_store_u32(uint32_t *at, uint32_t v)
{
    __atomic_store_n(at, v, __ATOMIC_RELEASE);
}

/* ---- geometry ---------------------------------------------------------------------------- */

/* What an arena is: a file beside the others, or host memory of CUDA, which has no name and ends
 * with the last process that has it. */
enum pool_memory { POOL_MEMORY_SHM = 0, POOL_MEMORY_CUDA = 1 };

enum pool_kv {
    POOL_KV_F32 = 1,
    POOL_KV_F16 = 2,
    POOL_KV_INT8 = 3,
    POOL_KV_K8V4 = 4,
    POOL_KV_Q4 = 5,
};

/* What all pipelines of one pool must state alike; compared field by field at attach. */
struct pool_geometry {
    uint32_t n_layers;                 /* of the whole model */
    uint32_t n_kv_heads;               /* K/V heads of a layer */
    uint32_t head_dim;                 /* values of one K or V head */
    uint32_t kv;                       /* enum pool_kv */
    uint32_t block_cells;              /* B: cells of a block */
    uint32_t context_tokens;           /* the longest conversation */
    uint64_t block_bytes;              /* bytes of one block: K and V of B cells of one layer */
    char fingerprint[POOL_TEXT_BYTES]; /* of the model file */
    char arithmetic[POOL_TEXT_BYTES];  /* of the workers (ARCHITECTURE.md, Exactness) */
};
static_assert(sizeof(struct pool_geometry) == 32 + 2 * POOL_TEXT_BYTES, "no hidden padding");

/* ---- control ----------------------------------------------------------------------------- */

/* What poold has counted since the segment was made: only rises, for whoever looks. A death loses
 * the count in hand at most. */
struct pool_counters {
    uint64_t evicted_chunks[POOL_RANKS]; /* given back, by rank */
    uint64_t refusals[POOL_CODES];       /* by Code */
    uint64_t latency[POOL_LATENCIES];    /* operations from receipt to answer: under 32 us, under
                                            128 us, and so on, four times as much each */
    uint64_t latency_us;                 /* their sum */
    uint64_t forks, takeovers;           /* opens that share, or go on in, a cached conversation */
    uint64_t resumes;                    /* opens that go on in one that waited */
    uint64_t moves;                      /* binds of one to another lane or pipeline */
    uint64_t prefix_hit_tokens;          /* that opens found */
    uint64_t recoveries, recovery_us;    /* of pipelines: from a confirmed death to ready again */
    uint64_t restarts, restart_us;       /* of poold: from its start to READY, with this pool */
    uint64_t saves, restores;            /* begun */
    uint64_t pad_[6];
};

struct pool_header { /* offset 0 of the control file; poold writes it once, but for poold_* */
    uint64_t magic;  /* stored last when the segment is made: a half-made one is no segment */
    uint32_t version;
    uint32_t header_bytes;
    uint64_t pool_id; /* random; every other file of the pool repeats it */
    uint64_t bytes;   /* of this file */
    uint64_t processes_off, pipelines_off, rows_off, tables_off, chunks_off;
    uint32_t n_rows;            /* pool.conversations */
    uint32_t n_chunks;          /* chunks 1..n_chunks are given out; 0 is the trash chunk */
    uint32_t chunk_cells;       /* C */
    uint32_t table_entries;     /* room of one row's table: context / C, rounded up, + 1 */
    uint32_t grow_chunks;       /* the growth unit */
    uint32_t n_stages;          /* of every pipeline on this pool */
    uint64_t poold_incarnation; /* poold, at each start */
    uint32_t poold_pid;
    uint32_t lane_chunks; /* identity layout: chunks of a lane's own range; 0: one pool for all */
    uint32_t pipeline_lanes; /* identity layout: lanes of a pipeline; range r = pipeline * lanes +
                                lane begins at chunk 1 + r * lane_chunks */
    uint32_t memory;         /* enum pool_memory: what the arenas are */
    struct pool_geometry geometry;
    char boot_id[40]; /* of the kernel that the process records' start times belong to */
    struct pool_counters counters; /* poold, at any time */
};

enum pool_role { POOL_ROLE_NONE, POOL_ROLE_WORKER, POOL_ROLE_GATEWAY, POOL_ROLE_TOOL };

/* A process that holds a lifeline, or held one and is not yet confirmed dead. poold fills the other
 * fields, then stores incarnation with release; 0 frees the record. */
struct pool_process {
    uint64_t incarnation;
    uint64_t start_time; /* field 22 of /proc/PID/stat, clock ticks since boot */
    uint32_t pid;
    uint32_t role;            /* enum pool_role */
    uint32_t pipeline, stage; /* of a worker */
    uint32_t dying;           /* 1: being killed, not yet confirmed dead */
    uint32_t pad_[7];
};
static_assert(sizeof(struct pool_process) == 64, "one cache line a process");

struct pool_pipeline {
    uint32_t life;                    /* raised at each reset and each new head; 0: never alive */
    uint32_t n_stages;                /* 0: the record is free */
    uint32_t layers[POOL_STAGES_MAX]; /* layers of each stage, in order */
    uint32_t draining;                /* not 0: it takes nothing new; a set of pool_drain_* */
    uint32_t pad_[13];
};
static_assert(sizeof(struct pool_pipeline) == 128, "two cache lines a pipeline");

/* Why a pipeline takes nothing new: it is drained itself, or one of its workers is. */
enum { POOL_DRAIN_PIPELINE = 1 };
static inline uint32_t pool_drain_worker(uint32_t stage) { return UINT32_C(2) << stage; }

enum pool_state {
    POOL_FREE = 0,
    POOL_ACTIVE = 1,  /* bound to a lane */
    POOL_WAITING = 2, /* admitted, not running */
    POOL_CLOSING = 3, /* ended, windows still in flight */
    POOL_IDLE = 4,    /* cached */
};

/* One of a row's two bodies. */
struct pool_body {
    uint64_t generation;  /* of the conversation: raised when the row is given to a new one */
    uint64_t last_window; /* closing: idle once every stage has drained past this window */
    uint64_t arrival;     /* age: the pool's arrival number */
    uint64_t salt;        /* who may share; 0: everybody */
    uint64_t op_incarnation, op_number; /* the operation that made this body */
    uint64_t copy_entry;                /* the entry still to be copied from, or 0 */
    uint32_t copy_cells;                /* its cells that count */
    uint32_t state;                     /* enum pool_state */
    uint32_t lease;
    uint32_t base;                 /* valid length when the lease began */
    uint32_t keep;                 /* closing: cells to keep at most */
    uint32_t n_entries;            /* entries of the table that are this row's */
    uint32_t pipeline, lane, life; /* where it is, or was last, bound */
    uint32_t resume;  /* closing: 1 when it is to wait for its gateway rather than be idle */
    uint64_t gateway; /* incarnation of the gateway whose request it serves, or 0 */
    uint64_t holder;  /* closing: incarnation of the tool that saves or restores it, or 0: then no
                         window ends it, but the tool's word or death */
    uint64_t pad_[2];
};
static_assert(sizeof(struct pool_body) == 128, "two cache lines a body");

/* A conversation's record. The low bit of version says which body holds. poold writes the other
 * one, then stores version + 1 with release: that store is the commit. A death before it leaves the
 * old body in force. */
struct pool_row {
    uint64_t version;
    uint64_t last_use; /* order only, outside the commit: microseconds of CLOCK_BOOTTIME */
    uint64_t pad_[6];
    struct pool_body body[2];
};
static_assert(sizeof(struct pool_row) == 320, "a row's size is part of the contract");

struct pool_chunk {
    uint32_t
        generation; /* raised when it enters a table from the free list, or a cut goes through */
    uint32_t
        checkpoint; /* the recurrent state taken at its end, or 0 (no model here has one yet) */
};

/* Copies the body in force. Returns the version that it belongs to. The writer fences before it
 * touches a body again, so a body read between two equal versions is whole. */
static inline uint64_t pool_row_read(const struct pool_row *row, struct pool_body *ret)
{
    for (;;) {
        uint64_t v = shm_load_u64(&row->version);
        __builtin_memcpy(ret, &row->body[v & 1], sizeof(*ret));
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&row->version, __ATOMIC_RELAXED) == v) return v;
    }
}

static inline const struct pool_row *pool_rows(const struct pool_header *h)
{
    return (const struct pool_row *)((const char *)h + h->rows_off);
}
static inline const uint64_t *pool_table(const struct pool_header *h, uint32_t row)
{
    return (const uint64_t *)((const char *)h + h->tables_off) + (uint64_t)row * h->table_entries;
}
static inline const struct pool_chunk *pool_chunks(const struct pool_header *h)
{
    return (const struct pool_chunk *)((const char *)h + h->chunks_off);
}
static inline const struct pool_process *pool_processes(const struct pool_header *h)
{
    return (const struct pool_process *)((const char *)h + h->processes_off);
}
static inline const struct pool_pipeline *pool_pipelines(const struct pool_header *h)
{
    return (const struct pool_pipeline *)((const char *)h + h->pipelines_off);
}

/* ---- tokens ------------------------------------------------------------------------------ */

struct pool_tokens { /* the cell's word is cell[chunk * C + offset] */
    uint64_t magic;
    uint64_t pool_id;
    uint64_t n_cells; /* trash chunk included */
    uint64_t pad_[5];
    uint32_t cell[]; /* the bound row's head, before it stores its head word */
};

/* ---- page -------------------------------------------------------------------------------- */

struct pool_page {
    uint64_t magic;
    uint64_t pool_id;
    uint32_t pipeline, stage;
    uint32_t n_rows;
    uint32_t pad0_;
    uint64_t drained; /* the worker: number of the last window whose effects are all in the pool */
    uint64_t windows, bubbles; /* the worker: windows run; those at whose end the next one was not
                                  there yet, so that it had none to run while this one went on */
    uint64_t busy_us;          /* the worker: time spent computing */
    uint64_t yields;           /* a head: prompts that let a shorter one pass */
    uint64_t given_back;       /* a head: conversations that made room for older ones */
    uint64_t truncations;      /* a head: answers that ended for want of room */
    uint64_t reread_tokens;    /* a head: computed again after a death or a move */
    uint64_t fed;              /* a head: windows posted before all their tokens were known */
    uint64_t pad_[3];
    /* word[row]: the worker, after the K/V of these cells is in the pool.
     * word[n_rows + row]: a head only, after the token ids of these cells are in the tokens file:
     * cells that it will not take back by itself. */
    uint64_t word[];
};
static_assert(sizeof(struct pool_page) == 128, "the words begin on a cache line");

/* ---- arena ------------------------------------------------------------------------------- */

enum pool_run_kind { POOL_RUN_KV = 1, POOL_RUN_CHECKPOINT = 2 };

/* A run holds one layer for all chunks: [chunk][block], each block K and V of its B cells as
 * kv_block.h lays them out. The order within K is the backend's, and part of its arithmetic
 * string. */
struct pool_run {
    uint32_t layer;
    uint32_t kind; /* enum pool_run_kind */
    uint64_t off;  /* from the file's beginning; a multiple of 4096 */
    uint64_t block_bytes;
};

struct pool_arena {
    uint64_t magic; /* stored last */
    uint64_t pool_id;
    uint64_t bytes;
    uint32_t stage, n_runs;
    uint32_t chunk_cells, block_cells;
    uint32_t n_chunks; /* trash chunk not counted */
    uint32_t pad_;
    struct pool_run run[POOL_RUNS_MAX];
};

#endif
