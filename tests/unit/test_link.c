/* SPDX-License-Identifier: MIT */
/*
 * A link between two threads that stand for two stages: no ring is slept through; then links and
 * windows with one number changed, each with what the refusal must name. The sound ones are laid
 * out here by hand, by proto/link_shm.h.
 */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/suite.h"
#include "workerd/link.h"

enum { STAGES = 3, SLOTS = 6, ROWS = 24, LANES = 4, EMBD = 16, LIFE = 7 };

static const struct link_want want = {
    .pool_id = 77,
    .pipeline = 1,
    .life = LIFE,
    .n_stages = STAGES,
    .max_rows = ROWS,
    .max_lanes = LANES,
    .n_embd = EMBD,
};

static struct link_header sound_header(void)
{
    struct link_header h = {
        .magic = LINK_MAGIC,
        .version = LINK_SHM_VERSION,
        .pipeline = 1,
        .life = LIFE,
        .n_stages = STAGES,
        .n_slots = SLOTS,
        .max_rows = ROWS,
        .max_lanes = LANES,
        .n_embd = EMBD,
        .pool_id = 77,
        .bells_off = 4096,
        .inboxes_off = 4096 + 64 * (STAGES + 1),
        .slots_off = 8192,
        .lanes_off = sizeof(struct link_window),
    };
    h.tokens_off = h.lanes_off + LANES * sizeof(struct link_lane);
    h.biases_off = h.tokens_off + ROWS * sizeof(uint32_t);
    h.results_off = h.biases_off + LANES * LINK_BIASES_MAX * sizeof(struct link_bias);
    h.probs_off = h.results_off + 64;
    h.ways_off = h.probs_off + ROWS * sizeof(struct link_probs);
    h.activations_off = h.ways_off + (STAGES - 1) * sizeof(uint32_t);
    h.activations_bytes = ROWS * EMBD * sizeof(float);
    h.slot_bytes = (h.activations_off + (STAGES - 1) * h.activations_bytes + 63) / 64 * 64;
    h.bytes = h.slots_off + SLOTS * h.slot_bytes;
    return h;
}

static int map(const struct link_header *h, uint64_t file_bytes, struct why *why, struct link **ret)
{
    CLEANUP(closep) int fd = memfd_create("link", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)file_bytes), 0);
    ck_assert_int_eq(pwrite(fd, h, sizeof(*h), 0), (ssize_t)sizeof(*h));
    return link_map(fd, &want, why, ret);
}

static struct link *sound_link(void)
{
    struct link_header h = sound_header();
    struct link *l = NULL;
    struct why why = {0};
    ck_assert_msg(map(&h, h.bytes, &why, &l) == 0, "%s", why.text);
    return l;
}

/* ---- bells ---- */

enum { RINGS = 40000 };

struct pair {
    struct link *link;
    uint32_t spin_us;
};

/* Stage 1: waits for each window and hands it on. The timeout is far longer than the test's, so a
 * ring that is slept through fails it. A wait may end early: by the wake of the ring before, which
 * was seen without it. */
static void *second(void *arg)
{
    struct pair *p = arg;
    for (uint32_t n = 0; n < RINGS; n++) {
        while (!bell_wait(link_bell(p->link, 1), n, p->spin_us, 600 * 1000000u))
            ;
        bell_ring(link_bell(p->link, 2), n + 1);
    }
    return NULL;
}

START_TEST(no_ring_is_slept_through)
{
    struct pair p = {sound_link(), _i ? 20 : 0};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, second, &p), 0);
    for (uint32_t n = 0; n < RINGS; n++) {
        bell_ring(link_bell(p.link, 1), n + 1);
        while (!bell_wait(link_bell(p.link, 2), n, p.spin_us, 600 * 1000000u))
            ;
        ck_assert_uint_eq(bell_count(link_bell(p.link, 2)), n + 1);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    link_unref(p.link);
}
END_TEST

struct sleeper {
    struct link *link;
    uint32_t woken; /* atomic: 1, and one more if the bell has rung */
};

static void *sleep_at_bell(void *arg)
{
    struct sleeper *s = arg;
    bool rung = bell_wait(link_bell(s->link, 1), 0, 0, 600 * 1000000u);
    __atomic_store_n(&s->woken, rung ? 2 : 1, __ATOMIC_RELEASE);
    return NULL;
}

START_TEST(who_sleeps_is_woken_without_a_ring)
{
    struct sleeper s = {sound_link(), 0};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, sleep_at_bell, &s), 0);
    while (!__atomic_load_n(&s.woken, __ATOMIC_ACQUIRE)) {
        bell_wake(link_bell(s.link, 1)); /* one that is not asleep yet misses it */
        (void)sched_yield();
    }
    ck_assert_uint_eq(s.woken, 1);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    link_unref(s.link);
}
END_TEST

START_TEST(a_silent_bell_lets_go)
{
    struct link *l = sound_link();
    ck_assert(!bell_wait(link_bell(l, 0), 0, 20, 1000));
    ck_assert_uint_eq(link_bell(l, 0)->sleepers, 0);
    bell_ring(link_bell(l, 0), UINT32_MAX);
    ck_assert(bell_wait(link_bell(l, 0), 0, 0, 1000));
    ck_assert(!bell_wait(link_bell(l, 0), UINT32_MAX, 0, 1000));
    link_unref(l);
}
END_TEST

/* ---- layouts ---- */

START_TEST(places_do_not_overlap)
{
    struct link *l = sound_link();
    char *end = l->base + l->h.bytes;
    for (uint64_t n = 1; n <= SLOTS; n++) {
        char *slot = (char *)link_slot(l, n);
        ck_assert_ptr_eq(link_slot(l, n + SLOTS), slot);
        ck_assert(slot >= (char *)(link_bell(l, STAGES) + 1));
        ck_assert_ptr_eq(link_lanes(l, n), slot + sizeof(struct link_window));
        ck_assert_ptr_eq(link_tokens(l, n), (char *)(link_lanes(l, n) + LANES));
        ck_assert_ptr_eq(link_biases(l, n), link_tokens(l, n) + ROWS);
        ck_assert_ptr_eq(link_results(l, n), link_biases(l, n) + LANES * LINK_BIASES_MAX);
        ck_assert_ptr_eq(link_probs(l, n), (char *)link_results(l, n) + 64);
        ck_assert_ptr_eq(link_way(l, n, 0), link_probs(l, n) + ROWS);
        ck_assert_ptr_eq(link_activations(l, n, 0), link_way(l, n, STAGES - 1));
        ck_assert_ptr_eq(link_activations(l, n, 1), link_activations(l, n, 0) + ROWS * EMBD);
        ck_assert((char *)(link_activations(l, n, 1) + ROWS * EMBD) <= end);
    }
    ck_assert_ptr_eq(link_inbox(l, 0), link_bell(l, STAGES + 1));
    ck_assert((char *)link_inbox(l, STAGES) <= (char *)link_slot(l, SLOTS));
    struct link *again = link_ref(l);
    link_unref(l);
    ck_assert_uint_eq(bell_count(link_bell(again, 0)), 0); /* still mapped */
    link_unref(again);
}
END_TEST

enum width { U32, U64 };
static const struct {
    size_t off;
    enum width width;
    uint64_t value;
    const char *says;
} wrong_links[] = {
#define FIELD(f) offsetof(struct link_header, f)
    {FIELD(magic),             U64, 1,                 "version"    },
    {FIELD(version),           U32, 1,                 "version"    },
    {FIELD(pipeline),          U32, 0,                 "another"    },
    {FIELD(life),              U32, LIFE - 1,          "another"    },
    {FIELD(pool_id),           U64, 78,                "another"    },
    {FIELD(n_stages),          U32, STAGES + 1,        "stages"     },
    {FIELD(n_stages),          U32, 0,                 "stages"     },
    {FIELD(n_embd),            U32, EMBD * 2,          "width"      },
    {FIELD(max_rows),          U32, ROWS + 1,          "rows"       },
    {FIELD(max_rows),          U32, LANES - 1,         "rows"       },
    {FIELD(max_lanes),         U32, LANES + 1,         "lanes"      },
    {FIELD(max_lanes),         U32, 0,                 "lanes"      },
    {FIELD(n_slots),           U32, 0,                 "slots"      },
    {FIELD(n_slots),           U32, UINT32_MAX,        "slots"      },
    {FIELD(n_slots),           U32, SLOTS + 1,         "slots"      },
    {FIELD(bytes),             U64, UINT64_C(1) << 40, "cut short"  },
    {FIELD(bells_off),         U64, UINT64_MAX - 63,   "bells"      },
    {FIELD(bells_off),         U64, 4097,              "bells"      },
    {FIELD(inboxes_off),       U64, UINT64_MAX - 63,   "inboxes"    },
    {FIELD(inboxes_off),       U64, 4097,              "inboxes"    },
    {FIELD(ways_off),          U64, UINT64_C(1) << 32, "ways"       },
    {FIELD(ways_off),          U64, 3,                 "ways"       },
    {FIELD(slots_off),         U64, UINT64_MAX - 63,   "slots"      },
    {FIELD(slots_off),         U64, 8193,              "slots"      },
    {FIELD(slot_bytes),        U64, UINT64_C(1) << 62, "slots"      },
    {FIELD(slot_bytes),        U64, 64,                "lanes"      },
    {FIELD(lanes_off),         U64, 0,                 "lanes"      },
    {FIELD(lanes_off),         U64, UINT64_MAX - 63,   "lanes"      },
    {FIELD(tokens_off),        U64, UINT64_MAX - 3,    "tokens"     },
    {FIELD(tokens_off),        U64, 3,                 "tokens"     },
    {FIELD(biases_off),        U64, UINT64_MAX - 3,    "biases"     },
    {FIELD(results_off),       U64, UINT64_C(1) << 32, "results"    },
    {FIELD(probs_off),         U64, UINT64_C(1) << 32, "probab"     },
    {FIELD(activations_off),   U64, UINT64_MAX - 3,    "activations"},
    {FIELD(activations_bytes), U64, 4,                 "activations"},
    {FIELD(activations_bytes), U64, UINT64_C(1) << 63, "activations"},
#undef FIELD
};

START_TEST(wrong_links_are_refused_by_name)
{
    struct link_header h = sound_header();
    uint64_t file_bytes = h.bytes;
    size_t bytes = wrong_links[_i].width == U32 ? sizeof(uint32_t) : sizeof(uint64_t);
    memcpy((char *)&h + wrong_links[_i].off, &wrong_links[_i].value, bytes);
    struct link *l = NULL;
    struct why why = {0};
    ck_assert_int_eq(map(&h, file_bytes, &why, &l), -EPROTO);
    ck_assert_ptr_null(l);
    ck_assert_msg(strstr(why.text, wrong_links[_i].says) != NULL, "%s", why.text);
}
END_TEST

START_TEST(a_file_cut_short_is_refused)
{
    struct link_header h = sound_header();
    struct link *l = NULL;
    struct why why = {0};
    ck_assert_int_eq(map(&h, h.bytes - 1, &why, &l), -EPROTO);
    CLEANUP(closep) int empty = memfd_create("empty", MFD_CLOEXEC);
    ck_assert_int_eq(link_map(empty, &want, &why, &l), -EPROTO);
    ck_assert_ptr_null(l);
}
END_TEST

/* ---- windows ---- */

static const struct link_limits limits = {
    .n_rows = 10, .context_tokens = 100, .n_vocab = 1000, .n_chunks = 9, .chunk_cells = 16};

/* Window 9: lane 0 decodes at position 50 with two biases, lane 1 reads 20 tokens up to the
 * context's end with one. */
static void sound_window(struct link *l)
{
    *link_slot(l, 9) = (struct link_window){
        .number = pool_window(LIFE, 9), .n_rows = 21, .n_lanes = 2, .n_biases = 3};
    link_lanes(l, 9)[0] = (struct link_lane){.row = 9,
                                             .lease = 3,
                                             .pos = 50,
                                             .n_rows = 1,
                                             .want = 1,
                                             .top_p = 1,
                                             .n_biases = 2,
                                             .kind = LINK_GENERATED};
    link_lanes(l, 9)[1] = (struct link_lane){.row = 0,
                                             .lease = 4,
                                             .pos = 80,
                                             .n_rows = 20,
                                             .want = 2,
                                             .top_p = 1,
                                             .n_biases = 1,
                                             .probs = LINK_PROBS_ALL,
                                             .n_top = LINK_TOP_MAX,
                                             .next = 999};
    for (uint32_t i = 0; i < 21; i++)
        link_tokens(l, 9)[i] = 999 - i;
    for (uint32_t i = 0; i < 3; i++)
        link_biases(l, 9)[i] = (struct link_bias){900 + i, i == 1 ? -INFINITY : (float)i};
}

static int read_window(const struct link *l, uint64_t count, struct why *why)
{
    struct link_lane lanes[LANES];
    uint32_t tokens[ROWS];
    static struct link_bias biases[LANES * LINK_BIASES_MAX];
    struct link_copy c = {.lanes = lanes, .tokens = tokens, .biases = biases};
    int r = link_read(l, count, &limits, &c, why);
    if (r < 0) return r;
    ck_assert_uint_eq(c.window.n_rows, 21);
    ck_assert_uint_eq(lanes[0].lease, 3);
    ck_assert_uint_eq(lanes[1].pos, 80);
    ck_assert_uint_eq(tokens[20], 979);
    ck_assert_uint_eq(biases[2].id, 902);
    return 0;
}

enum part { WINDOW, LANE_0, LANE_1, TOKEN_20, BIAS_2 };
/* Without a comma, which clang-format 14 takes for the next column of the table. */
#define IN_WINDOW(field) offsetof(struct link_window, field)
#define IN_LANE(field) offsetof(struct link_lane, field)
#define IN_BIAS(field) offsetof(struct link_bias, field)

static const struct {
    enum part part;
    size_t off;
    uint64_t value;
    const char *says;
} wrong_windows[] = {
    {LANE_0,   IN_LANE(copy_cells),  16,                   "can't be copied"},
    {WINDOW,   IN_WINDOW(number),    LIFE,                 "number"         },
    {WINDOW,   IN_WINDOW(n_rows),    20,                   "20 token"       },
    {WINDOW,   IN_WINDOW(n_rows),    22,                   "no lane"        },
    {WINDOW,   IN_WINDOW(n_rows),    ROWS + 1,             "most"           },
    {WINDOW,   IN_WINDOW(n_lanes),   0,                    "most"           },
    {WINDOW,   IN_WINDOW(n_lanes),   LANES + 1,            "most"           },
    {LANE_0,   IN_LANE(row),         10,                   "row 10"         },
    {LANE_0,   IN_LANE(row),         UINT32_MAX,           "row"            },
    {LANE_0,   IN_LANE(n_rows),      0,                    "0 token"        },
    {LANE_0,   IN_LANE(n_rows),      UINT32_MAX,           "token rows"     },
    {LANE_0,   IN_LANE(pos),         100,                  "position 100"   },
    {LANE_0,   IN_LANE(pos),         UINT32_MAX,           "position"       },
    {LANE_1,   IN_LANE(pos),         81,                   "position 81"    },
    {LANE_1,   IN_LANE(want),        3,                    "logits"         },
    {LANE_1,   IN_LANE(temperature), 0x7fc00000 /* NaN */, "sampling"       },
    {LANE_1,   IN_LANE(top_p),       0xbf800000 /* -1 */,  "sampling"       },
    {LANE_0,   IN_LANE(repeat),      0x7fc00000 /* NaN */, "penalty"        },
    {LANE_0,   IN_LANE(presence),    0x7f800000 /* inf */, "penalty"        },
    {LANE_0,   IN_LANE(frequency),   0xff800000,           "penalty"        },
    {LANE_0,   IN_LANE(n_biases),    4,                    "biases"         },
    {LANE_0,   IN_LANE(n_biases),    1,                    "belong to no"   },
    {LANE_0,   IN_LANE(n_biases),    LINK_BIASES_MAX + 1,  "most"           },
    {WINDOW,   IN_WINDOW(n_biases),  UINT32_MAX,           "most"           },
    {LANE_0,   IN_LANE(kind),        2,                    "kind of rows"   },
    {LANE_1,   IN_LANE(kind),        UINT32_MAX,           "kind of rows"   },
    {LANE_0,   IN_LANE(probs),       3,                    "probabilities"  },
    {LANE_0,   IN_LANE(probs),       LINK_PROBS_ALL,       "probabilities"  },
    {LANE_1,   IN_LANE(n_top),       LINK_TOP_MAX + 1,     "probabilities"  },
    {LANE_1,   IN_LANE(next),        1000,                 "probabilities"  },
    {BIAS_2,   IN_BIAS(id),          1000,                 "bias of token"  },
    {BIAS_2,   IN_BIAS(add),         0x7fc00000 /* NaN */, "bias of token"  },
    {TOKEN_20, 0,                    1000,                 "token 1000"     },
};

START_TEST(a_sound_window_is_read)
{
    struct link *l = sound_link();
    struct why why = {0};
    sound_window(l);
    ck_assert_msg(read_window(l, 9, &why) == 0, "%s", why.text);
    link_unref(l);
}
END_TEST

/* Each kind of two lanes: only a prompt's rows before generated ones are refused. */
START_TEST(generated_rows_come_first)
{
    struct link *l = sound_link();
    struct why why = {0};
    sound_window(l);
    link_lanes(l, 9)[0].kind = (uint32_t)_i % 2;
    link_lanes(l, 9)[1].kind = (uint32_t)_i / 2;
    bool wrong = _i == 2;
    ck_assert_int_eq(read_window(l, 9, &why), wrong ? -EPROTO : 0);
    if (wrong) ck_assert_msg(strstr(why.text, "behind") != NULL, "%s", why.text);
    link_unref(l);
}
END_TEST

START_TEST(malformed_windows_are_refused_by_name)
{
    struct link *l = sound_link();
    sound_window(l);
    char *parts[] = {[WINDOW] = (char *)link_slot(l, 9),
                     [LANE_0] = (char *)&link_lanes(l, 9)[0],
                     [LANE_1] = (char *)&link_lanes(l, 9)[1],
                     [TOKEN_20] = (char *)&link_tokens(l, 9)[20],
                     [BIAS_2] = (char *)&link_biases(l, 9)[2]};
    memcpy(parts[wrong_windows[_i].part] + wrong_windows[_i].off, &wrong_windows[_i].value,
           sizeof(uint32_t));
    struct why why = {0};
    ck_assert_int_eq(read_window(l, 9, &why), -EPROTO);
    ck_assert_msg(strstr(why.text, wrong_windows[_i].says) != NULL, "%s", why.text);
    link_unref(l);
}
END_TEST

/* Lane 0 or 1 of window `count` is said to be fed. The oldest window that is still in its slot when
 * number 9 is read is 9 - SLOTS + 1; a life's first is 1. */
static const struct {
    uint64_t count;
    uint32_t lane, fed_back, fed_lane, token;
    const char *says; /* NULL: it is read */
} fed[] = {
    {9, 0, 1,          0,         LINK_TOKEN_FED, NULL               },
    {9, 0, SLOTS - 1,  LANES - 1, LINK_TOKEN_FED, NULL               },
    {9, 0, SLOTS,      0,         LINK_TOKEN_FED, "can't feed"       },
    {9, 0, UINT32_MAX, 0,         LINK_TOKEN_FED, "can't feed"       },
    {9, 0, 1,          LANES,     LINK_TOKEN_FED, "can't feed"       },
    {9, 0, 1,          0,         999,            "can't feed"       },
    {9, 1, 1,          0,         LINK_TOKEN_FED, "can't feed its 20"},
    {9, 0, 0,          0,         LINK_TOKEN_FED, "token 4294967295" },
    {3, 0, 2,          0,         LINK_TOKEN_FED, NULL               },
    {3, 0, 3,          0,         LINK_TOKEN_FED, "can't feed"       }, /* there is no window 0 */
};

START_TEST(who_is_fed_is_bounded)
{
    struct link *l = sound_link();
    sound_window(l);
    link_slot(l, 9)->number = pool_window(LIFE, fed[_i].count); /* 3 and 9 have one slot */
    ck_assert_ptr_eq(link_slot(l, 9), link_slot(l, fed[_i].count));
    link_lanes(l, 9)[fed[_i].lane].fed_back = fed[_i].fed_back;
    link_lanes(l, 9)[fed[_i].lane].fed_lane = fed[_i].fed_lane;
    link_tokens(l, 9)[fed[_i].lane] = fed[_i].token;
    struct why why = {0};
    ck_assert_int_eq(read_window(l, fed[_i].count, &why), fed[_i].says ? -EPROTO : 0);
    if (fed[_i].says) ck_assert_msg(strstr(why.text, fed[_i].says) != NULL, "%s", why.text);
    link_unref(l);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("link");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, no_ring_is_slept_through, 0, 2);
    tcase_add_test(tc, who_sleeps_is_woken_without_a_ring);
    tcase_add_test(tc, a_silent_bell_lets_go);
    tcase_add_test(tc, places_do_not_overlap);
    tcase_add_loop_test(tc, wrong_links_are_refused_by_name, 0, ARRAY_LEN(wrong_links));
    tcase_add_test(tc, a_file_cut_short_is_refused);
    tcase_add_test(tc, a_sound_window_is_read);
    tcase_add_loop_test(tc, generated_rows_come_first, 0, 4);
    tcase_add_loop_test(tc, malformed_windows_are_refused_by_name, 0, ARRAY_LEN(wrong_windows));
    tcase_add_loop_test(tc, who_is_fed_is_bounded, 0, ARRAY_LEN(fed));
    return suite_run("link", tc);
}
