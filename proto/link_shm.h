/* SPDX-License-Identifier: MIT */
#ifndef PROTO_LINK_SHM_H
#define PROTO_LINK_SHM_H
/*
 * The link of a pipeline: one sealed memory file a life, made by poold when all stages are attached
 * and handed to each over its lifeline. Through it windows go from stage to stage without a
 * message.
 *
 *   header | bells [stage 0..n_stages] | inboxes [n_stages] | slot [n_slots]
 *   slot:  window | lanes [max_lanes] | tokens [max_rows] | biases [max_lanes][LINK_BIASES_MAX]
 *          | results [max_lanes] | probs [max_rows] | ways [n_stages - 1]
 *          | activations [n_stages - 1][max_rows][n_embd] float
 *
 * Windows are taken in order by every stage: window number {life, n} lies in slot n % n_slots. Bell
 * 0 counts windows that the head has posted; bell s + 1 counts windows that stage s has finished.
 * So stage s waits until bell s passes its own count, and the head until bell n_stages does. What
 * the head wrote every stage may read as soon as bell 0 covers it. The head posts into a slot only
 * when the last stage has finished the window that lay there before.
 *
 * A window may be posted before the tokens that it begins with are known: such a lane's one row
 * bears LINK_TOKEN_FED, and stage 0 takes the token from the results of an earlier window, once
 * bell n_stages covers that. Those results stay until stage 0 has taken the later window: the
 * window that lies in their slot next is behind it.
 *
 * Activations go from stage s to stage s + 1 through the slot, or straight into memory of the next
 * one's device, which that one names in its inbox. Way s of the slot, stored before bell s + 1
 * rings, says where they are; they are complete when it rings. Once decided it stays for the life,
 * so that the next stage knows of later windows before they come.
 *
 * Each bell has one writer. A death leaves a count that no longer rises; the link is then of no use
 * to anybody and the next life has another one. A reader bounds what it copies out of a slot.
 */
#include "proto/pool_shm.h"

enum {
    LINK_SHM_VERSION = 6,
    LINK_SLOTS_PER_STAGE = 2, /* one being computed, one posted ahead */
    LINK_BIASES_MAX = 1088,   /* of a lane: what a client may say (1024), and end tokens (64) */
    LINK_TOP_MAX = 20,        /* alternatives beside a token; OpenAI's limit */
};
#define LINK_NEXT_SAMPLED UINT32_MAX
#define LINK_TOKEN_FED UINT32_MAX               /* in place of a token: see link_lane.fed_back */
#define LINK_MAGIC UINT64_C(0x316b6e4c434e5443) /* "CTNLnk1" */

struct link_header { /* poold, before anybody has it */
    uint64_t magic;
    uint32_t version;
    uint32_t pipeline, life;
    uint32_t n_stages, n_slots, max_rows, max_lanes, n_embd;
    uint64_t pool_id;
    uint64_t bells_off, slots_off;
    uint64_t slot_bytes, lanes_off, tokens_off, results_off, activations_off; /* within a slot */
    uint64_t biases_off, probs_off, ways_off;                                 /* likewise */
    uint64_t inboxes_off;
    uint64_t activations_bytes; /* of one stage's part */
    uint64_t bytes;             /* of the file */
};

/* count is stored with sequential consistency, then sleepers is looked at; a waiter announces
 * itself in sleepers, then looks at count again. Nobody sleeps through a ring. */
struct link_bell {
    uint32_t count; /* the stage before (or the head): futex word; wraps, compare by difference */
    uint32_t sleepers; /* waiters: 1 while one sleeps; a dead waiter's 1 costs a needless wake */
    uint32_t pad_[14];
};
static_assert(sizeof(struct link_bell) == 64, "one cache line a bell");

struct link_window { /* the head */
    uint64_t number; /* pool_window(life, n) */
    uint32_t n_rows, n_lanes;
    uint32_t n_biases; /* of all lanes, one lane after the other */
    uint32_t pad0_;
    uint64_t pad_[5];
};

struct link_lane {   /* the head */
    uint32_t row;    /* the conversation's row in the pool */
    uint32_t lease;  /* what the stages' words will bear */
    uint32_t pos;    /* position of its first token row */
    uint32_t n_rows; /* token rows of this lane in this window */
    uint32_t want;   /* 0 none, 1 the last row is sampled, 2 logits of all rows (debug) */
    uint32_t top_k;
    float temperature, top_p, min_p;
    uint32_t copy_chunk; /* with copy_cells: copied into the chunk of pos before the window runs */
    uint64_t seed;
    uint64_t tag;        /* of the head, handed back untouched in traces: request id */
    uint32_t copy_cells; /* first window of a fork: cells before pos to copy, else 0 */
    /* How the sampled row's logits are changed first (workerd/sampler.h). What is counted are the
     * ids in the tokens file up to the sampled row, which the head stored before this window. */
    uint32_t n_biases;
    uint32_t generated_from; /* position of the first generated token */
    uint32_t repeat_last;    /* tokens before the sampled one that repeat looks at */
    float repeat, presence, frequency;
    uint32_t probs;    /* enum link_want_probs */
    uint32_t n_top;    /* with probs: alternatives wanted */
    uint32_t next;     /* LINK_PROBS_ALL: the token after its last row, or LINK_NEXT_SAMPLED */
    uint32_t fed_back; /* not 0: its one row's token is what the window so many before this one
                          sampled */
    uint32_t fed_lane; /* as that window's lane number */
    uint32_t kind;     /* enum link_kind, of all its rows; lanes of generated rows come first */
    uint32_t pad_[5];
};
static_assert(sizeof(struct link_lane) == 128, "two cache lines a lane");

enum link_inbox_state {
    LINK_INBOX_UNSAID, /* its stage has not taken up this life yet: the slot is used meanwhile */
    LINK_INBOX_NONE,   /* the slot is to be used; text says why */
    LINK_INBOX_MEMORY, /* device memory that the stage before may open */
};
enum link_way {
    LINK_WAY_SLOT,  /* until the stage before has decided */
    LINK_WAY_INBOX, /* these two once, and for all that follow in the life */
    LINK_WAY_SLOTS,
};

/* The stage whose inbox it is, once a life; state last, with release. Rows of window n begin at
 * off + n % n_slots * slot_bytes of the memory that the handle stands for. The memory holds the key
 * at key_off: a handle's bytes may be those of older memory, so whoever opens it looks for the key.
 * Dead before state: the life is over before anybody waited for it. */
struct link_inbox {
    uint32_t state; /* enum link_inbox_state */
    uint32_t pad0_;
    uint64_t off, slot_bytes, key_off, key;
    uint8_t handle[64]; /* cudaIpcMemHandle_t */
    uint8_t card[16];   /* the device's UUID: numbers differ between processes */
    char text[136];     /* the device's name, as "cuda:1", or why there is none; ends with 0 */
};
static_assert(sizeof(struct link_inbox) == 256, "the same for whoever compiles it");

enum link_kind { LINK_PROMPT, LINK_GENERATED };

enum link_want_probs {
    LINK_PROBS_NONE,
    LINK_PROBS_SAMPLED, /* of the sampled token, at its row's place */
    LINK_PROBS_ALL,     /* of the token after each row; want is 2 */
};

struct link_bias { /* the head */
    uint32_t id;
    float add; /* to its logit; -INFINITY: it is never sampled */
};

/* Natural logarithms of probabilities by the model's own logits: before biases, penalties and
 * temperature. */
struct link_prob {
    uint32_t id;
    float logprob;
};
struct link_probs { /* the last stage */
    float logprob;  /* of the token after the row */
    uint32_t n_top;
    struct link_prob top[LINK_TOP_MAX]; /* the most likely first, the lower id on a tie */
};
static_assert(sizeof(struct link_probs) == 168, "the same for whoever compiles it");

#endif
