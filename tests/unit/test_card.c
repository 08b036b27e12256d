/* SPDX-License-Identifier: MIT */
/* Which cards serve, and what may be put on one. Compute capabilities are those of NVIDIA's list
 * (developer.nvidia.com/cuda-gpus); sums are written out. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "tests/suite.h"
#include "workerd/cuda/card.h"

#define GIB(n) ((uint64_t)(n) << 30)

static const struct {
    const char *name;
    uint32_t capability;
    bool host_pointers;
    const char *says; /* NULL: it serves */
} cards[] = {
    {"NVIDIA H200",          90,  true,  NULL                                                 },
    {"NVIDIA A100",          80,  true,  NULL                                                 },
    {"NVIDIA RTX A4500",     86,  true,  NULL                                                 },
    {"NVIDIA RTX 5090",      120, true,  NULL                                                 },
    {"Tesla T4",             75,  true,  "cuda:1 is a Tesla T4 of compute capability 7.5; 8.0"},
    {"Tesla V100-PCIE-32GB", 70,  true,  "Tesla V100-PCIE-32GB of compute capability 7.0"     },
    {"Tesla P40",            61,  false, "Tesla P40 of compute capability 6.1"                },
    {"NVIDIA A2",            86,  false, "cuda:1 (NVIDIA A2) can't address registered host"   },
};

START_TEST(a_card_that_cannot_serve_is_refused_by_name)
{
    struct cuda_card c = {"cuda:1", cards[_i].name, cards[_i].capability, cards[_i].host_pointers};
    struct why why = {0};
    ck_assert_int_eq(cuda_card_check(&c, &why), cards[_i].says ? -ENOTSUP : 0);
    if (cards[_i].says) ck_assert_msg(strstr(why.text, cards[_i].says) != NULL, "%s", why.text);
}
END_TEST

/* What a CUDA without a driver says of itself was passed on: that the driver is too old. */
START_TEST(a_machine_without_a_driver_had_one_that_was_too_old)
{
    struct why why = {0};
    ck_assert_int_eq(cuda_driver_refuse(0, 13000, &why), -ENODEV);
    ck_assert_msg(strstr(why.text, "there is no NVIDIA driver here") != NULL, "%s", why.text);
    ck_assert_int_eq(cuda_driver_refuse(12040, 13000, &why), -ENODEV);
    ck_assert_msg(strstr(why.text, "for CUDA 12.4, this build wants one for 13.0") != NULL, "%s",
                  why.text);
}
END_TEST

static const struct {
    struct cuda_budget b;
    uint64_t free_bytes, room, resident;
} rooms[] = {
  /* The card's own: all that is free, and a GiB less for K/V. */
    {{0, GIB(8), GIB(1), 0},            GIB(100), GIB(100), GIB(99) },
    {{0, 0, 0, 0},                      GIB(1),   GIB(1),   0       },
    {{0, 0, 0, 0},                      5,        5,        0       },
 /* As if it had 20 GiB: 19 of them, less what is there. */
    {{GIB(20), 0, 0, 0},                GIB(130), GIB(19),  GIB(19) },
    {{GIB(20), GIB(8), GIB(1), 0},      GIB(130), GIB(10),  GIB(10) },
    {{GIB(20), GIB(8), GIB(1), GIB(9)}, GIB(130), GIB(1),   GIB(1)  },
    {{GIB(20), GIB(8), GIB(11), 0},     GIB(130), 0,        0       },
    {{GIB(20), GIB(30), 0, 0},          GIB(130), 0,        0       },
 /* A card that has less free than its limit leaves. */
    {{GIB(20), GIB(8), GIB(1), 0},      GIB(4),   GIB(4),   GIB(3)  },
 /* A small limit leaves a sixteenth: 64 - 4 - 10 - 2 MiB. */
    {{64 << 20, 10 << 20, 2 << 20, 0},  GIB(130), 48 << 20, 48 << 20},
};

START_TEST(what_fits_under_a_limit)
{
    ck_assert_uint_eq(cuda_budget_room(&rooms[_i].b, rooms[_i].free_bytes), rooms[_i].room);
    ck_assert_uint_eq(cuda_budget_resident(&rooms[_i].b, rooms[_i].free_bytes), rooms[_i].resident);
}
END_TEST

static const struct {
    uint64_t room;
    uint32_t layers;
    uint64_t all, most, context, slots, passing;
} places[] = {
    {3200, 32, 100, 1000, 50,   100, 0 }, /* all stay */
    {2000, 32, 100, 1000, 1000, 59,  41}, /* 59 x 32 + 41 x 2 = 1970; all pass or stay */
    {2000, 32, 100, 1000, 20,   61,  20},
    {2000, 32, 100, 40,   1000, 40,  60}, /* worker.kv_resident */
    {2000, 32, 100, 0,    50,   0,   50},
    {100,  32, 100, 1000, 1000, 2,   12}, /* 24 of 100: a quarter */
    {50,   1,  100, 1000, 1000, 38,  6 },
    {0,    32, 100, 1000, 1000, 0,   0 },
    {2000, 32, 0,   1000, 1000, 0,   0 },
};

START_TEST(what_stays_and_what_passes)
{
    struct cuda_places p = cuda_places_of(places[_i].room, places[_i].layers, places[_i].all,
                                          places[_i].most, places[_i].context);
    ck_assert_uint_eq(p.slots, places[_i].slots);
    ck_assert_uint_eq(p.passing, places[_i].passing);
    ck_assert_uint_le(p.slots * places[_i].layers + p.passing * 2, places[_i].room);
}
END_TEST

START_TEST(what_does_not_fit_is_told_with_the_bytes_of_each)
{
    struct cuda_budget b = {.limit = GIB(20), .weights = 111, .buffers = 222, .resident = 333};
    struct why why = {0};
    ck_assert_int_eq(cuda_budget_refuse(&b, "blk.3.attn_q.weight", 444, 555, 666, &why), -ENOMEM);
    static const char *const says[] = {"blk.3.attn_q.weight: no GPU memory for its 444 bytes",
                                       "111 of weights",
                                       "222 of buffers",
                                       "333 of K/V",
                                       "555 of 666 bytes are free",
                                       "worker.memory_limit = 21474836480 leaves 555"};
    for (size_t i = 0; i < ARRAY_LEN(says); i++)
        ck_assert_msg(strstr(why.text, says[i]) != NULL, "%s", why.text);
    b.limit = 0;
    (void)cuda_budget_refuse(&b, "x", 444, 555, 666, &why);
    ck_assert_ptr_null(strstr(why.text, "memory_limit"));
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("card");
    tcase_add_loop_test(tests, a_card_that_cannot_serve_is_refused_by_name, 0, ARRAY_LEN(cards));
    tcase_add_test(tests, a_machine_without_a_driver_had_one_that_was_too_old);
    tcase_add_loop_test(tests, what_fits_under_a_limit, 0, ARRAY_LEN(rooms));
    tcase_add_loop_test(tests, what_stays_and_what_passes, 0, ARRAY_LEN(places));
    tcase_add_test(tests, what_does_not_fit_is_told_with_the_bytes_of_each);
    return suite_run("card", tests);
}
