/* SPDX-License-Identifier: MIT */
#ifndef GATEWAY_API_GENERATION_H
#define GATEWAY_API_GENERATION_H
/*
 * An answer that a model writes, from its prompt's tokens to the last byte to its client: an
 * exchange on one side, one request to the workers a choice on the other. What it looks like on the
 * wire is an API's own table of functions, so that all APIs have one way of admission, of stop
 * strings, of counting and of ending.
 *
 * Loop thread. A generation frees itself when it is over; the functions of its shape may read it
 * and send events, no more.
 */
#include "gateway/api/fields.h"
#include "gateway/api/logit_bias.h"
#include "gateway/api/logprobs.h"
#include "gateway/api/raw.h"
#include "gateway/gateway.h"
#include "gateway/keys.h"

struct generation;

enum ending {
    ENDED_NOT,
    ENDED_BY_MODEL, /* an end-of-generation token */
    ENDED_BY_STRING,
    ENDED_BY_LENGTH,
};

struct prompt {
    struct tokenizer_ids ids;
    uint32_t n_cached;
    struct logprobs probs; /* with generation.prompt_probs */
};

struct choice {
    struct generation *of;
    struct prompt *prompt;
    uint32_t index;          /* of all choices: those of one prompt follow each other */
    uint32_t nth;            /* of its prompt's */
    struct request *request; /* NULL: not yet submitted, or over */
    struct text *text;
    struct bytebuf out; /* text not yet handed over */
    uint32_t n_generated;
    struct logprobs probs;       /* of its tokens, with generation.probs */
    uint32_t n_probs_sent;       /* shown to the client */
    struct logprobs_place place; /* of completions: where the next one's token begins */
    bool echoed;                 /* likewise: its prompt's text was sent */
    uint64_t last_token_us;
    enum ending ending;
    bool truncated;          /* ENDED_BY_LENGTH since the pool had no room */
    const char *stop_string; /* of ENDED_BY_STRING */
    uint32_t stop_token;     /* of ENDED_BY_MODEL */
};

/* How an API shows it. What returns int returns what generation_send did. */
struct shape {
    enum api_id api; /* whose fields the body has */
    const char *id_prefix;
    /* The prompt's tokens, at most n_ctx, of what was asked. */
    int (*prompt)(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                  struct fault *fault, struct tokenizer_ids *ret);
    /* Instead of prompt, of an API whose bodies may have several. */
    int (*prompts)(const struct gateway *g, const struct ask *ask, uint32_t n_ctx,
                   struct fault *fault, struct prompt_list *ret);
    bool keep_text; /* the last events repeat it */
    /* The prompt has a lane, and how much of it was cached is known; or, early, it waits long for a
     * lane. */
    bool early;
    int (*begin)(struct generation *g);
    int (*text)(struct choice *c, json_t *text);             /* takes text */
    int (*progress)(struct generation *g, json_t *progress); /* takes progress; or NULL */
    int (*choice_end)(struct choice *c);                     /* or NULL */
    int (*end)(struct generation *g);
    int (*fail)(struct generation *g, const struct fault *f);
    int (*silent)(struct generation *g); /* keeps a stream alive; NULL: a comment does */
    json_t *(*whole)(struct generation *g);
};

struct generation {
    struct gateway *gateway;
    struct exchange *exchange;
    const struct shape *shape;
    struct key *key; /* whose place it takes; NULL: none is asked for */
    bool key_waits;  /* it counts among those of key that wait */
    struct ask ask;  /* the stop strings live in its body */
    struct prompt prompt[GENERATION_CHOICES_MAX];
    uint32_t n_prompts, n_choices; /* a prompt has ask.n of them */
    struct logit_bias bias;
    bool probs, prompt_probs; /* what is wanted */
    uint32_t n_top;
    char id[64];
    time_t created;
    uint64_t started_us;  /* when its first prompt got a lane */
    uint32_t n_events;    /* sent so far */
    struct bytebuf shown; /* with shape->keep_text: the text so far of a stream */
    bool streaming;       /* the headers are out */
    bool begun;
    struct choice choice[GENERATION_CHOICES_MAX];
};

/* Whether the model that was asked for is served here. */
int generation_model(const struct gateway *g, const struct ask *ask, struct fault *fault);
/* The handler of an API's route: answers a fault, or begins a generation, whose the exchange then
 * is. */
void generation_serve(struct gateway *g, struct exchange *x, const struct shape *shape);

/* One server-sent event; event NULL: data only. Takes data. Negative: the reader takes no more. */
int generation_send(struct generation *g, const char *event, json_t *data);
uint32_t generation_tokens(const struct generation *g);        /* of all choices */
uint32_t generation_prompt_tokens(const struct generation *g); /* of all prompts */
uint32_t generation_cached_tokens(const struct generation *g); /* likewise */
/* The probabilities that may be shown now and were not: of tokens whose text was, or of a whole
 * answer. They count as shown from here on. Empty unless generation.probs. */
struct logprobs_part choice_probs(struct choice *c);
struct logprobs_part choice_shown_probs(const struct choice *c); /* all that were */
json_t *choice_text(const struct choice *c);                     /* of a whole answer */
void random_id(const char *prefix, char ret[64]);

#endif
