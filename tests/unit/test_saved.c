/* SPDX-License-Identifier: MIT */
/*
 * The saved conversation's file: sizes by hand from the format's description, checksums by the
 * values that XXH64 is published with, and headers that lie.
 */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "poold/poolctl_file.h"
#include "tests/suite.h"

/* The values that the reference implementation gives with seed 0. */
static const struct {
    const char *text;
    uint64_t sum;
} sums[] = {
    {"",                                        UINT64_C(0xEF46DB3751D8E999)},
    {"a",                                       UINT64_C(0xD24EC4F1A98C6E5B)},
    {"abc",                                     UINT64_C(0x44BC2CF5AD770999)},
    {"Nobody inspects the spammish repetition", UINT64_C(0xFBCEA83C8A378BF1)},
};

START_TEST(a_checksum_is_the_published_one)
{
    struct xxh64 x;
    xxh64_init(&x);
    xxh64_add(&x, sums[_i].text, strlen(sums[_i].text));
    ck_assert_uint_eq(xxh64_end(&x), sums[_i].sum);
}
END_TEST

START_TEST(pieces_do_not_matter)
{
    uint8_t bytes[1000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    struct xxh64 whole, parts;
    for (size_t step = 1; step < 100; step++) {
        xxh64_init(&whole);
        xxh64_init(&parts);
        xxh64_add(&whole, bytes, sizeof(bytes));
        for (size_t at = 0; at < sizeof(bytes); at += step)
            xxh64_add(&parts, bytes + at, min_u64(step, sizeof(bytes) - at));
        ck_assert_uint_eq(xxh64_end(&whole), xxh64_end(&parts));
    }
}
END_TEST

/* 40 cells in chunks of 32, blocks of 16 cells and 100 bytes, 3 layers. */
static struct saved_header header(uint8_t page[SAVED_HEADER_BYTES])
{
    struct saved_header h = {.n_cells = 40, .chunk_cells = 32, .salt = 7};
    h.geometry = (struct pool_geometry){
        .n_layers = 3, .block_cells = 16, .block_bytes = 100, .context_tokens = 64, .kv = 2};
    strcpy(h.geometry.fingerprint, "print");
    strcpy(h.geometry.arithmetic, "maths");
    saved_seal(&h, page);
    return h;
}

enum {
    FIRST_BYTES = 16 + 32 * 4 + 3 * 2 * 100, /* head, tokens, 2 blocks a layer */
    LAST_BYTES = 16 + 8 * 4 + 3 * 1 * 100,
    FILE_BYTES = 4096 + FIRST_BYTES + LAST_BYTES,
};

START_TEST(sizes_are_the_descriptions)
{
    uint8_t page[SAVED_HEADER_BYTES];
    struct saved_header h = header(page), got;
    struct why why;
    ck_assert_uint_eq(saved_n_chunks(&h), 2);
    ck_assert_uint_eq(saved_chunk_bytes(&h, 0), FIRST_BYTES);
    ck_assert_uint_eq(saved_chunk_bytes(&h, 1), LAST_BYTES);
    ck_assert_uint_eq(saved_tokens_bytes(3), 16); /* padded to 8 */
    ck_assert_uint_eq(h.bytes, FILE_BYTES);
    ck_assert_int_eq(saved_from(page, sizeof(page), FILE_BYTES, &why, &got), 0);
    ck_assert_mem_eq(&got, &h, sizeof(h));
}
END_TEST

START_TEST(every_byte_of_the_header_counts)
{
    uint8_t page[SAVED_HEADER_BYTES];
    struct saved_header got;
    struct why why;
    (void)header(page);
    for (size_t i = 0; i < sizeof(page); i++) {
        page[i] ^= 0x10;
        int r = saved_from(page, sizeof(page), FILE_BYTES, &why, &got);
        bool version = i >= 8 && i < 12;
        ck_assert_msg(r == (version ? -EPROTONOSUPPORT : -EBADMSG), "byte %zu: %d", i, r);
        page[i] ^= 0x10;
    }
}
END_TEST

START_TEST(an_end_that_is_missing_is_told_from_damage)
{
    uint8_t page[SAVED_HEADER_BYTES];
    struct saved_header got;
    struct why why;
    (void)header(page);
    static const uint64_t shorter[] = {0, 4096, FILE_BYTES - 1};
    static const uint64_t longer[] = {FILE_BYTES + 1, UINT64_MAX};
    for (size_t i = 0; i < ARRAY_LEN(shorter); i++)
        ck_assert_int_eq(saved_from(page, sizeof(page), shorter[i], &why, &got), -ENODATA);
    for (size_t i = 0; i < ARRAY_LEN(longer); i++)
        ck_assert_int_eq(saved_from(page, sizeof(page), longer[i], &why, &got), -EBADMSG);
    for (size_t n = 0; n < sizeof(page); n++) /* also in the middle of each field */
        ck_assert_int_eq(saved_from(page, n, n, &why, &got), -ENODATA);
    page[0] ^= 1;
    for (size_t n = 1; n <= sizeof(page); n++)
        ck_assert_int_eq(saved_from(page, n, n, &why, &got), -EBADMSG);
}
END_TEST

/* A sealed header whose numbers can't be: the checksum holds, since whoever writes the file can
 * make one. */
static void put(struct saved_header *h, size_t off, uint32_t v) { memcpy((char *)h + off, &v, 4); }

static const struct {
    size_t off;
    uint32_t value;
} lies[] = {
    {offsetof(struct saved_header, n_cells),              0            },
    {offsetof(struct saved_header, n_cells),              (1 << 24) + 1},
    {offsetof(struct saved_header, n_cells),              UINT32_MAX   },
    {offsetof(struct saved_header, chunk_cells),          1 << 17      },
    {offsetof(struct saved_header, chunk_cells),          33           },
    {offsetof(struct saved_header, geometry.n_layers),    0            },
    {offsetof(struct saved_header, geometry.n_layers),    1025         },
    {offsetof(struct saved_header, geometry.block_bytes), UINT32_MAX   },
    {offsetof(struct saved_header, geometry.block_bytes), 0            },
};

START_TEST(a_header_that_lies_is_refused)
{
    uint8_t page[SAVED_HEADER_BYTES];
    struct saved_header h = header(page), got;
    struct why why;
    put(&h, lies[_i].off, lies[_i].value);
    saved_seal(&h, page);
    ck_assert_int_eq(saved_from(page, sizeof(page), h.bytes, &why, &got), -EBADMSG);
}
END_TEST

START_TEST(what_does_not_fit_the_pool_is_foreign)
{
    uint8_t page[SAVED_HEADER_BYTES];
    struct saved_header h = header(page);
    struct pool_header pool = {.chunk_cells = 32, .geometry = h.geometry};
    struct why why;
    ck_assert_int_eq(saved_fits(&h, &pool, &why), 0);
    pool.geometry.fingerprint[0] = 'x';
    ck_assert_int_eq(saved_fits(&h, &pool, &why), -EXDEV);
    pool.geometry = h.geometry;
    pool.geometry.arithmetic[0] = 'x';
    ck_assert_int_eq(saved_fits(&h, &pool, &why), -EXDEV);
    pool.geometry = h.geometry;
    pool.geometry.kv = 1;
    ck_assert_int_eq(saved_fits(&h, &pool, &why), -EXDEV);
    pool.geometry = h.geometry;
    pool.geometry.context_tokens = 39;
    ck_assert_int_eq(saved_fits(&h, &pool, &why), -EXDEV);
    pool.geometry = h.geometry;
    pool.chunk_cells = 64;
    ck_assert_int_eq(saved_fits(&h, &pool, &why), -EXDEV);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("saved");
    tcase_add_loop_test(tc, a_checksum_is_the_published_one, 0, ARRAY_LEN(sums));
    tcase_add_test(tc, pieces_do_not_matter);
    tcase_add_test(tc, sizes_are_the_descriptions);
    tcase_add_test(tc, every_byte_of_the_header_counts);
    tcase_add_test(tc, an_end_that_is_missing_is_told_from_damage);
    tcase_add_loop_test(tc, a_header_that_lies_is_refused, 0, ARRAY_LEN(lies));
    tcase_add_test(tc, what_does_not_fit_the_pool_is_foreign);
    return suite_run("saved", tc);
}
