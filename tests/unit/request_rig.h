/* SPDX-License-Identifier: MIT */
#ifndef TESTS_UNIT_REQUEST_RIG_H
#define TESTS_UNIT_REQUEST_RIG_H
/*
 * One request of a gateway and the head that it goes to, played by the test: what the tests of a
 * generation's life stand on.
 */
#include "gateway/request.h"

enum { SENT_MAX = 16, N_VOCAB = 1000 };

/* What the head was sent. */
extern struct rig_head {
    struct pipeline pipeline;
    bool none_ready;
    int send_result;
    unsigned n_generate, n_cancel;
    Cistern__Generate generate; /* the last one; its arrays are copied below */
    uint32_t prompt[SENT_MAX], generated[SENT_MAX];
    uint64_t number;
    Cistern__Cancel cancel;
    uint32_t to, from; /* what was asked of the last pick */
} head;

/* What who asked was told. */
extern struct rig_got {
    uint32_t ids[SENT_MAX];
    size_t n;
    unsigned started, finished;
    float logprobs[SENT_MAX]; /* of ids, where asked for */
    float read_logprobs[SENT_MAX];
    uint32_t n_read_probs, n_read;
    struct request_end end;
} got;

extern struct loop *loop;
extern struct requests *requests;
extern struct request *request;
extern struct request_ask more; /* what a test asks beside what they all do; taken by begin */

/* A request of three tokens for at most eight. */
void begin(uint32_t resume_ms);
void end(void);
void deliver(Cistern__Envelope *m);
void send_tokens(uint32_t attempt, uint32_t index, size_t n, const uint32_t *ids);
void send_started(uint32_t attempt);
void send_finished(uint32_t attempt, Cistern__Reason reason, Cistern__Code code, uint32_t n);
/* Runs the loop until the request is submitted again or finished. */
void run_until_submitted(unsigned n_generate);

#endif
