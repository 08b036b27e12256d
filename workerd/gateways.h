/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_GATEWAYS_H
#define WORKERD_GATEWAYS_H
/*
 * What the head says to gateways. A gateway that can't be told something is as good as dead: its
 * incarnation is kept until the head asks for it and ends its requests. Loop thread only.
 */
#include "common/msg.h"
#include "workerd/lanes.h"
#include "workerd/model.h"
#include "workerd/requests.h"

struct gateways;

/* How a request ended. */
struct ending {
    Cistern__Reason reason;
    bool truncated;      /* LENGTH because the pool had no room */
    uint32_t stop_token; /* of STOP */
    Cistern__Code code;  /* of ERROR */
    const char *text;    /* of ERROR: a sentence, or NULL */
    uint32_t to;         /* of MOVED: pipeline + 1, or 0 */
};

struct model_card {
    const char *name, *arch, *fingerprint;
    uint32_t context_tokens, n_ctx_train, n_vocab, n_lanes;
};

int gateways_new(struct loop *l, const char *endpoint, uint64_t self, msg_fn fn, void *arg,
                 struct why *why, struct gateways **ret);
void gateways_free(struct gateways *g); /* takes NULL */

void gateways_model(struct gateways *g, uint64_t to, uint64_t number, const struct model_card *c);
void gateways_started(struct gateways *g, const struct request *r, const struct lane *l,
                      uint32_t cached_tokens);
/* The prompt is read up to n_read; probs: of the n tokens of it from position first on, for who
 * wants them. */
void gateways_read(struct gateways *g, const struct request *r, uint32_t n_read, uint32_t first,
                   const struct link_probs *probs, uint32_t n);
/* The request's last token; probs: its own, for who wants them. */
void gateways_token(struct gateways *g, const struct request *r, const struct link_probs *probs);
void gateways_finished(struct gateways *g, const struct request *r, const struct ending *e);
/* Of a request that was refused at the door. */
void gateways_refused(struct gateways *g, uint64_t to, const Cistern__Generate *asked,
                      const struct refusal *refusal);

/* A gateway that could not be reached; 0 when there is none. Each is told once. */
uint64_t gateways_failed(struct gateways *g);

#endif
