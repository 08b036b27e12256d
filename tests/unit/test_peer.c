/* SPDX-License-Identifier: MIT */
/*
 * The ways of activations over a link in this process's memory, as far as no device is asked: what
 * is decided when, what is said, and that a way which is none is refused.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/config.h"
#include "tests/suite.h"
#include "workerd/peer.h"

enum { STAGES = 3, SLOTS = 6, ROWS = 8, EMBD = 16, BYTES = 1 << 16 };

static struct link *link_make(void)
{
    struct link *l = calloc(1, sizeof(*l));
    l->base = calloc(1, BYTES);
    l->h = (struct link_header){
        .n_stages = STAGES,
        .n_slots = SLOTS,
        .max_rows = ROWS,
        .n_embd = EMBD,
        .bells_off = 512,
        .inboxes_off = 1024,
        .slots_off = 4096,
        .slot_bytes = 4096,
        .ways_off = 256,
        .activations_off = 512,
        .activations_bytes = ROWS * EMBD * sizeof(float),
    };
    return l;
}

static void link_end(struct link *l)
{
    free(l->base);
    free(l);
}

static struct peer peer_of(uint32_t stage, uint32_t mode)
{
    return (struct peer){.stage = stage, .n_stages = STAGES, .mode = mode, .device = "cuda:0"};
}

START_TEST(nobody_waits_for_an_inbox_that_is_not_named)
{
    struct link *l = link_make();
    struct peer p = peer_of(0, WORKER_PEER_ON);
    struct why why = {0};
    struct window w = {0};
    ck_assert_int_eq(peer_look(&p, NULL, l, &why), 0);
    ck_assert(!p.decided);
    ck_assert_int_eq(peer_ways(&p, l, 7, &w, &why), 0);
    ck_assert(!w.out_inbox);
    ck_assert_ptr_eq(w.out, link_activations(l, 7, 0));
    peer_say(&p, l, 7, &w);
    ck_assert_uint_eq(*link_way(l, 7, 0), LINK_WAY_SLOT);
    link_end(l);
}
END_TEST

static const struct {
    uint32_t mode;
    struct link_inbox inbox;
    int result;
    const char *says;
} named[] = {
    {WORKER_PEER_AUTO,
     {.state = LINK_INBOX_NONE, .text = "it is on a CPU"},
     1,                                                                              "through host memory: stage 2: it is on a CPU"        },
    {WORKER_PEER_ON,
     {.state = LINK_INBOX_NONE, .text = "it is on a CPU"},
     -ENOTSUP,
     "worker.peer = on, but stage 2 can't be reached: stage 2: it is on a CPU"                                                             },
    {WORKER_PEER_OFF,
     {.state = LINK_INBOX_MEMORY, .slot_bytes = 1 << 20},
     1,                                                                              "through host memory: worker.peer = off"              },
    {WORKER_PEER_AUTO,
     {.state = LINK_INBOX_MEMORY, .slot_bytes = ROWS * EMBD * sizeof(float) - 1},
     1,                                                                              "through host memory: stage 2: its inbox is too small"},
    {WORKER_PEER_AUTO, {.state = 77, .text = "what?"},                            1, "through host memory: stage 2: what?"                 },
};

START_TEST(what_is_named_is_decided_once)
{
    struct link *l = link_make();
    struct peer p = peer_of(1, named[_i].mode);
    struct why why = {0};
    *link_inbox(l, 2) = named[_i].inbox;
    ck_assert_int_eq(peer_look(&p, NULL, l, &why), named[_i].result);
    ck_assert(!p.open);
    ck_assert_str_eq(named[_i].result < 0 ? why.text : p.text, named[_i].says);
    ck_assert_int_eq(peer_look(&p, NULL, l, &why), 0);
    peer_end(&p, NULL);
    ck_assert(!p.decided && !p.text[0]);
    link_end(l);
}
END_TEST

START_TEST(a_text_without_an_end_is_cut)
{
    struct link *l = link_make();
    struct peer p = peer_of(1, WORKER_PEER_AUTO);
    struct why why = {0};
    struct link_inbox *inbox = link_inbox(l, 2);
    memset(inbox, 'x', sizeof(*inbox));
    inbox->state = LINK_INBOX_NONE;
    ck_assert_int_eq(peer_look(&p, NULL, l, &why), 1);
    ck_assert_uint_lt(strlen(p.text), sizeof(p.text));
    link_end(l);
}
END_TEST

START_TEST(an_inbox_that_is_off_is_named_so)
{
    struct link *l = link_make();
    struct peer p = peer_of(2, WORKER_PEER_OFF);
    peer_begin(&p, NULL, l);
    ck_assert_uint_eq(link_inbox(l, 2)->state, LINK_INBOX_NONE);
    ck_assert_str_eq(link_inbox(l, 2)->text, "worker.peer = off");
    struct why why = {0};
    ck_assert_int_eq(peer_look(&p, NULL, l, &why), 0); /* the last stage sends nothing */
    link_end(l);
}
END_TEST

/* Windows that came by a way: to a stage with an inbox and to one without. */
static const struct {
    bool has_inbox;
    uint32_t way;
    int result;
} came[] = {
    {false, LINK_WAY_SLOT,  0      },
    {true,  LINK_WAY_SLOT,  0      },
    {true,  LINK_WAY_INBOX, 0      },
    {false, LINK_WAY_INBOX, -EPROTO},
    {true,  LINK_WAY_SLOTS, 0      },
    {true,  3,              -EPROTO},
    {true,  UINT32_MAX,     -EPROTO},
};

START_TEST(each_window_says_its_way)
{
    struct link *l = link_make();
    struct peer p = peer_of(1, WORKER_PEER_AUTO);
    struct why why = {0};
    struct window w = {0};
    p.has_inbox = came[_i].has_inbox;
    p.open = true;
    *link_way(l, 8, 0) = came[_i].way;
    bell_ring(link_bell(l, 1), 8);
    ck_assert_int_eq(peer_ways(&p, l, 8, &w, &why), came[_i].result);
    if (came[_i].result == 0) {
        bool by_inbox = came[_i].way == LINK_WAY_INBOX;
        ck_assert(w.in_inbox == by_inbox && w.out_inbox);
        ck_assert_ptr_eq(w.in, by_inbox ? NULL : link_activations(l, 8, 0));
        ck_assert_ptr_null(w.out);
        ck_assert_uint_eq(w.slot, 2);
        peer_say(&p, l, 8, &w);
        ck_assert_uint_eq(*link_way(l, 8, 1), LINK_WAY_INBOX);
    }
    link_end(l);
}
END_TEST

/* What the window before says of those that follow; where there is no inbox the slots are used. */
static const struct {
    uint32_t way, then;
    bool known, by_inbox;
    int result; /* of `then` coming, of a window that was prepared before it came */
} settled[] = {
    {LINK_WAY_SLOT,  LINK_WAY_SLOT,  false, false, 0      },
    {LINK_WAY_INBOX, LINK_WAY_INBOX, true,  true,  0      },
    {LINK_WAY_SLOTS, LINK_WAY_SLOTS, true,  false, 0      },
    {LINK_WAY_INBOX, LINK_WAY_SLOT,  true,  true,  -EPROTO},
    {LINK_WAY_SLOTS, LINK_WAY_INBOX, true,  false, -EPROTO},
    {LINK_WAY_SLOTS, 3,              true,  false, -EPROTO},
};

START_TEST(a_way_may_be_known_before_activations_come)
{
    struct link *l = link_make();
    struct peer p = peer_of(1, WORKER_PEER_AUTO);
    struct why why = {0};
    struct window w = {0};
    ck_assert(peer_knows(&p, l, 8));
    ck_assert_int_eq(peer_ways(&p, l, 8, &w, &why), 0);
    ck_assert_ptr_eq(w.in, link_activations(l, 8, 0));
    p.has_inbox = true;
    ck_assert(!peer_knows(&p, l, 8));
    bell_ring(link_bell(l, 1), 8);
    *link_way(l, 8, 0) = settled[_i].way;
    ck_assert(peer_knows(&p, l, 8));
    ck_assert_int_eq(peer_ways(&p, l, 8, &w, &why), 0);
    ck_assert_int_eq(peer_came(&p, l, 8, &w, &why), 0);
    ck_assert(peer_knows(&p, l, 9) == settled[_i].known);
    ck_assert_int_eq(peer_ways(&p, l, 9, &w, &why), 0);
    ck_assert(w.in_inbox == settled[_i].by_inbox);
    *link_way(l, 9, 0) = settled[_i].then;
    ck_assert_int_eq(peer_came(&p, l, 9, &w, &why), settled[_i].result);
    link_end(l);
}
END_TEST

/* As soon as it is decided. */
START_TEST(who_sends_by_slots_for_good_says_so)
{
    struct link *l = link_make();
    struct peer p = peer_of(1, WORKER_PEER_OFF);
    struct why why = {0};
    struct window w = {0};
    peer_say(&p, l, 8, &w);
    ck_assert_uint_eq(*link_way(l, 8, 1), LINK_WAY_SLOT);
    *link_inbox(l, 2) = (struct link_inbox){.state = LINK_INBOX_NONE};
    ck_assert_int_eq(peer_look(&p, NULL, l, &why), 1);
    peer_say(&p, l, 9, &w);
    ck_assert_uint_eq(*link_way(l, 9, 1), LINK_WAY_SLOTS);
    link_end(l);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("peer");
    tcase_add_loop_test(tc, a_way_may_be_known_before_activations_come, 0, ARRAY_LEN(settled));
    tcase_add_test(tc, who_sends_by_slots_for_good_says_so);
    tcase_add_test(tc, nobody_waits_for_an_inbox_that_is_not_named);
    tcase_add_loop_test(tc, what_is_named_is_decided_once, 0, ARRAY_LEN(named));
    tcase_add_test(tc, a_text_without_an_end_is_cut);
    tcase_add_test(tc, an_inbox_that_is_off_is_named_so);
    tcase_add_loop_test(tc, each_window_says_its_way, 0, ARRAY_LEN(came));
    return suite_run("peer", tc);
}
