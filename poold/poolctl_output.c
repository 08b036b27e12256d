/* SPDX-License-Identifier: MIT */
/*
 * See poolctl_output.h. Called by save alone.
 */
#include "poold/poolctl_output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* The folder of a path; the caller frees it. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!folder) abort();
    return folder;
}

int output_begin(const char *path, struct output *ret)
{
    CLEANUP(freep) char *folder = folder_of(path);
    CLEANUP(freep) char *aside = NULL;
    if (!*path || path[strlen(path) - 1] == '/') return -EISDIR;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -errno;
    if (fd < 0) {
        if (asprintf(&aside, "%s.XXXXXX", path) < 0) abort();
        fd = mkostemp(aside, O_CLOEXEC); /* mode 0600 */
    }
    if (fd < 0) return -errno;
    *ret = (struct output){fd, path, TAKE(aside)};
    return 0;
}

/* A first name, under which it can be renamed over another file. One that is there already is of a
 * process of our id that died between the two steps. */
static int name_aside(struct output *o)
{
    char by_fd[64];
    CLEANUP(freep) char *aside = NULL;
    if (o->aside) return 0;
    (void)snprintf(by_fd, sizeof(by_fd), "/proc/self/fd/%d", o->fd);
    if (asprintf(&aside, "%s.%u", o->path, (unsigned)getpid()) < 0) abort();
    (void)unlink(aside);
    if (linkat(AT_FDCWD, by_fd, AT_FDCWD, aside, AT_SYMLINK_FOLLOW) < 0) return -errno;
    o->aside = TAKE(aside);
    return 0;
}

int output_publish(struct output *o)
{
    CLEANUP(freep) char *folder = folder_of(o->path);
    if (fsync(o->fd) < 0) return -errno;
    int r = name_aside(o);
    if (r < 0) return r;
    if (rename(o->aside, o->path) < 0) return -errno;
    free(TAKE(o->aside));
    CLEANUP(closep) int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

void output_fini(struct output *o)
{
    if (o->aside) (void)unlink(o->aside);
    free(TAKE(o->aside));
    closep(&o->fd);
    o->fd = -1;
}
