/* SPDX-License-Identifier: MIT */
/*
 * Files in the pool's directory. Called by attach.c; each is mapped for as long as poold lives, and
 * stays on disk (tmpfs) when it ends.
 */
#include "poold/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "common/death.h"

void mapped_file_fini(struct mapped_file *f)
{
    if (f->at) (void)munmap(f->at, f->bytes);
    closep(&f->fd);
    *f = (struct mapped_file){.fd = -1};
}

static int map(struct mapped_file *f)
{
    f->at = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
    if (f->at != MAP_FAILED) return 0;
    f->at = NULL;
    return -errno;
}

int store_open(const char *dir, const char *name, size_t bytes, struct mapped_file *ret)
{
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0) abort();
    CLEANUP(mapped_file_fini) struct mapped_file f = {.bytes = bytes};
    f.fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (f.fd < 0 || fstat(f.fd, &st) < 0) return -errno;
    if ((size_t)st.st_size != bytes) return -ENOENT;
    int r = map(&f);
    if (r < 0) return r;
    *ret = f;
    f = (struct mapped_file){.fd = -1};
    return 0;
}

int store_check_room(const char *dir, uint64_t bytes, const char *what, struct why *why)
{
    struct statvfs s;
    if (statvfs(dir, &s) < 0) return why_set(why, -errno, "%s: %s", dir, strerror(errno));
    uint64_t room = (uint64_t)s.f_bavail * s.f_frsize;
    if (room >= bytes) return 0;
    return why_set(why, -ENOSPC,
                   "pool.dir = %s: %s needs %llu bytes and there is room for %llu; lower "
                   "pool.cells, or give the directory a larger tmpfs",
                   dir, what, (unsigned long long)bytes, (unsigned long long)room);
}

int store_make(const char *dir, const char *name, size_t bytes, struct why *why,
               struct mapped_file *ret)
{
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0) abort();
    (void)unlink(path);
    CLEANUP(mapped_file_fini) struct mapped_file f = {.bytes = bytes};
    f.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f.fd < 0) return why_set(why, -errno, "%s: cannot be made: %s", path, strerror(errno));
    DEATH_POINT("file-empty");
    int r = -posix_fallocate(f.fd, 0, (off_t)bytes);
    if (r == 0) r = map(&f);
    if (r < 0) {
        (void)unlink(path);
        return why_set(why, r, "%s: no room for %zu bytes: %s; see pool.dir and pool.cells", path,
                       bytes, strerror(-r));
    }
    *ret = f;
    f = (struct mapped_file){.fd = -1};
    return 0;
}

int store_tokens(const char *dir, const struct pool_header *h, struct why *why,
                 struct mapped_file *ret, bool *ret_new)
{
    uint64_t n_cells = ((uint64_t)h->n_chunks + 1) * h->chunk_cells;
    size_t bytes = sizeof(struct pool_tokens) + n_cells * sizeof(uint32_t);
    *ret_new = false;
    if (store_open(dir, "tokens", bytes, ret) == 0) {
        const struct pool_tokens *t = ret->at;
        if (t->magic == POOL_TOKENS_MAGIC && t->pool_id == h->pool_id) return 0;
        mapped_file_fini(ret);
    }
    int r = store_make(dir, "tokens", bytes, why, ret);
    if (r < 0) return r;
    struct pool_tokens *t = ret->at;
    DEATH_POINT("tokens-header");
    *t = (struct pool_tokens){.pool_id = h->pool_id, .n_cells = n_cells};
    DEATH_POINT("tokens-magic");
    shm_store_u64(&t->magic, POOL_TOKENS_MAGIC);
    DEATH_POINT("tokens-made");
    *ret_new = true;
    return 0;
}

int store_page(const char *dir, const struct pool_header *h, uint32_t pipeline, uint32_t stage,
               struct why *why, struct mapped_file *ret, bool *ret_new)
{
    char name[40];
    (void)snprintf(name, sizeof(name), "page-%u-%u", pipeline, stage);
    size_t bytes = sizeof(struct pool_page) + (size_t)h->n_rows * 2 * sizeof(uint64_t);
    *ret_new = false;
    if (store_open(dir, name, bytes, ret) == 0) {
        const struct pool_page *p = ret->at;
        if (p->magic == POOL_PAGE_MAGIC && p->pool_id == h->pool_id && p->pipeline == pipeline &&
            p->stage == stage && p->n_rows == h->n_rows)
            return 0;
        mapped_file_fini(ret);
    }
    int r = store_make(dir, name, bytes, why, ret);
    if (r < 0) return r;
    struct pool_page *p = ret->at;
    DEATH_POINT("page-header");
    *p = (struct pool_page){
        .pool_id = h->pool_id, .pipeline = pipeline, .stage = stage, .n_rows = h->n_rows};
    DEATH_POINT("page-magic");
    shm_store_u64(&p->magic, POOL_PAGE_MAGIC);
    DEATH_POINT("page-made");
    *ret_new = true;
    return 0;
}

int store_lock_dir(const char *dir, const char *key, struct why *why, int *ret_lock)
{
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return why_set(why, -errno, "%s = %s: cannot be made: %s", key, dir, strerror(errno));
    CLEANUP(freep) char *path = NULL;
    if (asprintf(&path, "%s/poold.lock", dir) < 0) abort();
    CLEANUP(closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return why_set(why, -errno, "%s: cannot be made: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return why_set(why, -EBUSY,
                       "%s = %s: another poold has this directory; stop it or choose another %s",
                       key, dir, key);
    *ret_lock = TAKE_FD(fd);
    return 0;
}
