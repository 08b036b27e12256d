/* SPDX-License-Identifier: MIT */
/* Threads that read a file together: the bytes are those that one write put there. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/suite.h"
#include "workerd/cuda/readers.h"

enum { BYTES = 5 << 20 };

static int file_of(const uint8_t *data, size_t bytes)
{
    int fd = memfd_create("readers", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    return fd;
}

static const struct {
    uint32_t threads;
    uint64_t off, bytes;
    int result;
} reads[] = {
    {1,  0,         BYTES,     0   },
    {2,  1,         BYTES - 1, 0   },
    {7,  4095,      1 << 20,   0   },
    {64, 3,         524288,    0   }, /* one step alone */
    {99, 0,         524289,    0   },
    {4,  BYTES - 1, 1,         0   },
    {4,  77,        0,         0   },
    {3,  BYTES - 9, 10,        -EIO}, /* the file ends before */
    {3,  1,         BYTES,     -EIO},
};

START_TEST(bytes_come_as_they_are)
{
    uint8_t *data = malloc(BYTES), *to = malloc(BYTES + 1);
    for (uint32_t i = 0, x = 1; i < BYTES; i++, x = x * 1664525 + 1013904223)
        data[i] = (uint8_t)(x >> 24);
    int fd = file_of(data, BYTES);
    struct readers *r = readers_new(reads[_i].threads);
    for (int again = 0; again < 3; again++) {
        memset(to, 0xA5, BYTES + 1);
        ck_assert_int_eq(readers_read(r, fd, reads[_i].off, to, reads[_i].bytes), reads[_i].result);
        if (reads[_i].result == 0) ck_assert_mem_eq(to, data + reads[_i].off, reads[_i].bytes);
        ck_assert_uint_eq(to[reads[_i].bytes], 0xA5); /* and not one more */
    }
    /* A failed read leaves them fit for the next one. */
    ck_assert_int_eq(readers_read(r, fd, 5, to, 1000), 0);
    ck_assert_mem_eq(to, data + 5, 1000);
    readers_free(r);
    (void)close(fd);
    free(data);
    free(to);
}
END_TEST

START_TEST(what_cannot_be_read_is_said)
{
    uint8_t to[16];
    struct readers *r = readers_new(2);
    ck_assert_int_eq(readers_read(r, -1, 0, to, sizeof(to)), -EBADF);
    readers_free(r);
    readers_free(NULL);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("readers");
    tcase_add_loop_test(tests, bytes_come_as_they_are, 0, ARRAY_LEN(reads));
    tcase_add_test(tests, what_cannot_be_read_is_said);
    return suite_run("readers", tests);
}
