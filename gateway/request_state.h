/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_REQUEST_STATE_H
#define GATEWAY_REQUEST_STATE_H
/*
 * Between the files that implement request.h: the object, and what they call of each other.
 * request.c owns and submits, request_messages.c takes what heads send. Nobody else includes it.
 */
#include "gateway/request.h"

enum { REQUEST_BUCKETS = 1024 };

enum request_state {
    REQUEST_WAITING, /* no pipeline has it */
    REQUEST_SENT,
    REQUEST_LEAVING, /* cancelled; its head still has to say that it is finished */
};

struct request {
    struct requests *of;
    struct request *next, *prev; /* in a bucket */
    uint64_t id, number;         /* number: of the message that submitted it */
    uint32_t attempt;
    enum request_state state;
    struct pipeline *pipeline; /* unless WAITING */
    struct request_ask ask;    /* its prompt is ours */
    uint32_t *prompt, *generated, *bias_ids;
    uint32_t *spans; /* [n_spans]: as Started said; a head's matter, handed to the next one */
    size_t n_spans;
    float *biases;
    uint32_t n_read;   /* of the prompt, as was told */
    uint32_t n_probed; /* tokens of the prompt whose probabilities were told */
    uint32_t n_generated, generated_room;
    bool started, told_late, cancel_unsent;
    uint32_t keep; /* LEAVING: what the cancel says; UINT32_MAX: all */
    uint32_t cached_tokens, resume_row;
    uint32_t to, from; /* moved: the pipeline wanted, and the one left; number + 1, or 0 */
    uint64_t resume_generation, arrival;
    uint64_t since_us, retry_us;
    uint64_t left_us;     /* that it may still spend without a pipeline before it gets on */
    uint64_t deadline_us; /* WAITING: fail then; LEAVING: forget then */
    struct request_events events;
};

struct requests {
    struct requests_options o;
    struct request *bucket[REQUEST_BUCKETS];
    struct request *walk_next; /* where each_request goes on */
    struct loop_source *tick;
    uint64_t last_id, last_number;
    uint64_t n_moved, n_ended; /* attempts; moved ones are among the ended */
    uint32_t n;
};

static inline struct request **request_bucket(struct requests *rs, uint64_t id)
{
    return &rs->bucket[id % REQUEST_BUCKETS];
}

void request_free(struct request *r);
/* Each ends and frees it, and tells who asked. */
void request_finish(struct request *r, const struct request_end *end);
void request_fail(struct request *r, enum fault_kind fault, const char *text);
/* A new attempt with whoever is ready; else it stays WAITING and the tick tries again. */
void request_submit(struct request *r);
/* The attempt is over without a result; the next one follows as soon as a pipeline is ready. */
void request_end_attempt(struct request *r);
void request_give_up_attempt(struct request *r, const char *what);
void request_send_cancel(struct request *r);
/* From here on a loss has its whole time again. */
void request_gets_on(struct request *r);
/* The first token of a prompt follows nothing. */
bool request_wants_prompt_probs(const struct request *r);

#endif
