/* SPDX-License-Identifier: MIT */
/*
 * The bytes of a save and a restore by several threads: written and mapped files are the same, each
 * byte stands where poolctl_file.h says, the first damaged chunk is the one that is told, and who
 * is stopped ends.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "common/system.h"
#include "poold/poolctl_crew.h"
#include "tests/suite.h"

enum {
    LAYERS = 3,
    BLOCK_CELLS = 16,
    BLOCK_BYTES = 70016, /* no multiple of a page or of a piece */
    CHUNK_CELLS = 64,
    CHUNK_BYTES = CHUNK_CELLS / BLOCK_CELLS * BLOCK_BYTES, /* of a layer */
    CHUNKS = 10,
    CELLS = (CHUNKS - 1) * CHUNK_CELLS + 20, /* the last one has two blocks */
    POOL_CHUNKS = 2 * CHUNKS + 1,
    RUN_BYTES = POOL_CHUNKS * CHUNK_BYTES,
};

static const char zeros[CHUNK_BYTES];

struct side {
    struct copy copy;
    uint32_t chunks[CHUNKS];
};

/* Shared, as an arena is: what a thread leaves must still be there. */
static char *run_new(void)
{
    void *at = mmap(NULL, RUN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

/* first: the pool's chunk that the conversation begins with; it holds every second one. */
static void side_init(struct side *s, uint32_t first, bool filled)
{
    *s = (struct side){
        .copy = {.fd = -1,
                 .h = {.n_cells = CELLS,
                       .chunk_cells = CHUNK_CELLS,
                       .geometry = {.n_layers = LAYERS,
                                    .block_cells = BLOCK_CELLS,
                                    .block_bytes = BLOCK_BYTES}}}
    };
    for (uint32_t i = 0; i < CHUNKS; i++)
        s->chunks[i] = first + 2 * (CHUNKS - 1 - i);
    s->copy.chunks = s->chunks;
    s->copy.cell = xcalloc(POOL_CHUNKS * CHUNK_CELLS, sizeof(*s->copy.cell));
    for (uint32_t l = 0; l < LAYERS; l++)
        s->copy.layer[l] = run_new();
    for (uint32_t i = 0; filled && i < POOL_CHUNKS * CHUNK_CELLS; i++)
        s->copy.cell[i] = i * 7;
    for (uint32_t l = 0; filled && l < LAYERS; l++)
        for (uint32_t i = 0; i < POOL_CHUNKS * (uint32_t)CHUNK_BYTES; i++)
            s->copy.layer[l][i] = (char)(i * 2654435761U >> 24 ^ l);
}

static void side_fini(struct side *s)
{
    free(s->copy.cell);
    for (uint32_t l = 0; l < LAYERS; l++)
        (void)munmap(s->copy.layer[l], RUN_BYTES);
}

static int run(struct copy *c, bool save, struct crew *w)
{
    int ring = eventfd(0, EFD_CLOEXEC);
    eventfd_t rung = 0;
    ck_assert_int_eq(crew_start(w, c, save, ring), 0);
    ck_assert_int_eq(eventfd_read(ring, &rung), 0);
    ck_assert_uint_eq(rung, 1);
    int r = crew_join(w);
    (void)close(ring);
    return r;
}

enum way { WRITTEN, FAULTED, PAGED }; /* how pages are made */

/* FAULTED: as where a sandbox forbids userfaultfd: no descriptor is to be had. */
static int begin(struct copy *c, enum way way)
{
    struct rlimit old, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){0, old.rlim_max};
    if (way == FAULTED) ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    int r = copy_begin_out(c, way != WRITTEN);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    return r;
}

/* A saved file's descriptor. */
static int saved(struct side *s, enum way way)
{
    struct crew w;
    s->copy.fd = memfd_create("saved", MFD_CLOEXEC);
    ck_assert_int_ge(s->copy.fd, 0);
    ck_assert_int_eq(begin(&s->copy, way), 0);
    ck_assert((way != WRITTEN) == (s->copy.pages.map != NULL));
    ck_assert(way == PAGED || s->copy.pages.fault < 0 || !s->copy.pages.map);
    ck_assert_int_eq(run(&s->copy, true, &w), 0);
    copy_end_out(&s->copy);
    return TAKE_FD(s->copy.fd);
}

static char *bytes_of(int fd, uint64_t n)
{
    ck_assert_int_eq(lseek(fd, 0, SEEK_END), (off_t)n);
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    return at;
}

/* Cells and layers of a chunk of the pool against a file's, by the format's description. */
static void check_chunk(const struct side *s, const char *file, uint32_t i)
{
    uint32_t n = saved_chunk_cells(&s->copy.h, i), chunk = s->chunks[i];
    uint64_t layer = (n + BLOCK_CELLS - 1) / BLOCK_CELLS * (uint64_t)BLOCK_BYTES;
    const char *at = file + SAVED_HEADER_BYTES +
                     i * (16 + CHUNK_CELLS * 4 + LAYERS * (uint64_t)CHUNK_BYTES) + 16;
    ck_assert_mem_eq(at, s->copy.cell + chunk * CHUNK_CELLS, n * 4);
    at += n * 4;
    for (uint32_t l = 0; l < LAYERS; l++, at += layer)
        ck_assert_mem_eq(at, s->copy.layer[l] + chunk * (uint64_t)CHUNK_BYTES, layer);
}

START_TEST(files_are_the_same_however_their_pages_are_made)
{
    struct side from;
    side_init(&from, 1, true);
    int written = saved(&from, WRITTEN), mapped = saved(&from, _i);
    uint64_t n = from.copy.h.bytes;
    char *a = bytes_of(written, n), *b = bytes_of(mapped, n);
    ck_assert_mem_eq(a, b, n);
    for (uint32_t i = 0; i < CHUNKS; i++)
        check_chunk(&from, a, i);
    (void)munmap(a, n);
    (void)munmap(b, n);
    (void)close(written);
    (void)close(mapped);
    side_fini(&from);
}
END_TEST

/* As on tmpfs with huge pages, where whoever writes one page makes its neighbours, too. */
START_TEST(a_page_that_is_there_already_is_written)
{
    enum { N = 8 * PAGE_BYTES };
    static char want[N], old[PAGE_BYTES];
    int fd = memfd_create("saved", MFD_CLOEXEC);
    struct pages p;
    memset(old, 7, sizeof(old));
    for (uint32_t i = 0; i < N; i++)
        want[i] = (char)(i * 2654435761U >> 24);
    ck_assert(pages_open(&p, fd, N));
    for (int i = 0; i < 8; i++)
        if (i == 0 || i == 3 || i == 4 || i == 7)
            ck_assert_int_eq(pwrite(fd, old, PAGE_BYTES, i * PAGE_BYTES), PAGE_BYTES);
    ck_assert_int_eq(pages_reserve(&p, 0, N), 0);
    ck_assert_int_eq(pages_put(&p, want, N, 0), 0);
    pages_close(&p);
    char *is = bytes_of(fd, N);
    ck_assert_mem_eq(is, want, N);
    (void)munmap(is, N);
    (void)close(fd);
}
END_TEST

START_TEST(a_restore_gives_the_same_cells_and_touches_no_others)
{
    struct side from, to;
    struct crew w;
    side_init(&from, 1, true);
    side_init(&to, 2, false);
    int fd = saved(&from, PAGED);
    char *file = bytes_of(fd, from.copy.h.bytes);
    to.copy.fd = fd;
    to.copy.h = from.copy.h;
    ck_assert_int_eq(run(&to.copy, false, &w), 0);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        check_chunk(&to, file, i);
        ck_assert_mem_eq(to.copy.layer[0] + from.chunks[i] * (uint64_t)CHUNK_BYTES, zeros,
                         CHUNK_BYTES);
    }
    (void)munmap(file, from.copy.h.bytes);
    (void)close(fd);
    side_fini(&from);
    side_fini(&to);
}
END_TEST

START_TEST(the_first_damaged_chunk_is_told)
{
    struct side from, to;
    struct crew w;
    side_init(&from, 1, true);
    side_init(&to, 2, false);
    int fd = saved(&from, WRITTEN);
    char *file = bytes_of(fd, from.copy.h.bytes);
    for (uint32_t i = 3; i < CHUNKS; i += 2)
        file[SAVED_HEADER_BYTES + i * saved_chunk_bytes(&from.copy.h, 0) + 1000] ^= 1;
    to.copy.fd = fd;
    to.copy.h = from.copy.h;
    for (int turn = 0; turn < 20; turn++) {
        ck_assert_int_eq(run(&to.copy, false, &w), -EBADMSG);
        ck_assert_uint_eq(w.chunk, 3);
        ck_assert_str_eq(w.why.text, "chunk 3 is damaged: its checksum does not hold");
    }
    (void)munmap(file, from.copy.h.bytes);
    (void)close(fd);
    side_fini(&from);
    side_fini(&to);
}
END_TEST

START_TEST(who_is_stopped_ends)
{
    struct side from;
    struct crew w;
    side_init(&from, 1, true);
    from.copy.fd = memfd_create("saved", MFD_CLOEXEC);
    ck_assert_int_eq(copy_begin_out(&from.copy, true), 0);
    __atomic_store_n(&from.copy.stop, true, __ATOMIC_RELAXED);
    ck_assert_int_eq(run(&from.copy, true, &w), -ECANCELED);
    copy_end_out(&from.copy);
    (void)close(from.copy.fd);
    side_fini(&from);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("crew");
    tcase_add_loop_test(tests, files_are_the_same_however_their_pages_are_made, FAULTED, PAGED + 1);
    tcase_add_test(tests, a_page_that_is_there_already_is_written);
    tcase_add_test(tests, a_restore_gives_the_same_cells_and_touches_no_others);
    tcase_add_test(tests, the_first_damaged_chunk_is_told);
    tcase_add_test(tests, who_is_stopped_ends);
    return suite_run("crew", tests);
}
