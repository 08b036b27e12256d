/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_GATEWAY_H
#define GATEWAY_GATEWAY_H
/*
 * What one gateway process holds, made in order by main.c and given to every route. Loop thread.
 */
#include <time.h>

#include "common/config.h"
#include "gateway/chat.h"
#include "gateway/http.h"
#include "gateway/keys.h"
#include "gateway/metrics.h"
#include "gateway/pipelines.h"
#include "gateway/request.h"
#include "gateway/tokenizer/tokenizer.h"
#include "gateway/tool.h"

struct gateway {
    struct loop *loop;
    struct config *config;
    struct model_files {
        char *name;           /* what clients see */
        char fingerprint[65]; /* of the file */
        uint32_t n_ctx_train;
        struct tokenizer *tokenizer;
        struct chat_format *chat; /* NULL: the file has no template, and why_no_chat says why */
        struct why why_no_chat;
    } model;
    struct pipelines *pipelines;
    struct requests *requests;
    struct http *http;
    struct keys *keys;
    struct tools *tools; /* NULL: slots are not saved */
    struct metrics metrics;
    time_t started; /* "created" of the model */
    bool stopping, ready_told;
    char status[64]; /* what the supervisor was told last */
};

/* Whether a new request could be served now; if not, -EINVAL and the fault that says why. */
int gateway_can_serve(const struct gateway *g, struct fault *fault);
/* The same, and whether there is a place for one more generation. One that comes while poold and
 * who died with it are coming back may wait for them like those before it. */
int gateway_admits(const struct gateway *g, struct fault *fault);
/* Tokens of the longest conversation, as far as it is known. */
uint32_t gateway_context(const struct gateway *g);

#endif
