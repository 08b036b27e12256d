/* SPDX-License-Identifier: MIT */
/*
 * See tool.h. A run is told to have ended by its pidfd; what it prints is less than a pipe holds
 * and is read then.
 */
#include "gateway/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>

enum {
    ARGUMENTS_MAX = 16,
    OUT_BYTES_MAX = 16384, /* of its object; far above a save's, far below a pipe's 65536 */
};

struct tools {
    struct loop *loop;
    char *program;
    struct tool *first;
    uint32_t n;
};

struct tool {
    struct tools *of;
    struct tool *next;
    pid_t pid;
    int pidfd, out;
    struct loop_source *exited;
    tool_ended_fn ended; /* NULL: nobody waits */
    void *arg;
};

static char *beside_us(void)
{
    char path[4096], *at = NULL;
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (n <= 0) return NULL;
    path[n] = 0;
    *strrchr(path, '/') = 0;
    if (asprintf(&at, "%s/poolctl", path) < 0) abort();
    return at;
}

int tools_new(struct loop *l, const char *program, struct why *why, struct tools **ret)
{
    CLEANUP(freep) char *path = *program ? strdup(program) : beside_us();
    if (!path) return why_set(why, -ENOENT, "cannot tell where this program lies");
    if (*path != '/') return why_set(why, -EINVAL, "gateway.poolctl must be an absolute path");
    if (access(path, X_OK) < 0)
        return why_set(why, -errno,
                       "%s, which saves slots, can't be run: %m; gateway.poolctl names another",
                       path);
    struct tools *ts = xnew(struct tools);
    ts->loop = l;
    ts->program = TAKE(path);
    *ret = ts;
    return 0;
}

static void tool_free(struct tool *t)
{
    struct tool **at = &t->of->first;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    t->of->n--;
    loop_remove(t->exited);
    closep(&t->pidfd);
    closep(&t->out);
    free(t);
}

/* The pidfd, not the pid: it can't be another process's by now. */
static void end_it(const struct tool *t) { (void)pidfd_send_signal(t->pidfd, SIGKILL, NULL, 0); }

void tools_end_all(struct tools *ts)
{
    for (const struct tool *t = ts ? ts->first : NULL; t; t = t->next)
        end_it(t);
}

void tools_free(struct tools *ts)
{
    if (!ts) return;
    while (ts->first) {
        end_it(ts->first);
        tool_free(ts->first); /* whoever adopts orphans waits for it */
    }
    free(ts->program);
    free(ts);
}

static json_t *output_of(const struct tool *t)
{
    char text[OUT_BYTES_MAX];
    size_t n = 0;
    ssize_t got;
    while (n < sizeof(text) && (got = read(t->out, text + n, sizeof(text) - n)) > 0)
        n += (size_t)got;
    return json_loadb(text, n, 0, NULL);
}

static void on_exited(void *arg, uint32_t events)
{
    (void)events;
    struct tool *t = arg;
    siginfo_t info = {0};
    if (waitid(P_PIDFD, (id_t)t->pidfd, &info, WEXITED) < 0) return;
    json_t *out = t->ended ? output_of(t) : NULL;
    struct tool_end end = {info.si_code == CLD_EXITED ? info.si_status : -1, out};
    tool_ended_fn ended = t->ended;
    void *ended_arg = t->arg;
    tool_free(t);
    if (ended) ended(ended_arg, &end);
    json_decref(out);
}

/* With nothing of ours but the pipe, and no signal blocked that the loop has blocked for itself. */
static int spawn(const char *program, char *const *argv, int out, pid_t *ret)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, ours;
    (void)sigemptyset(&none);
    (void)sigemptyset(&ours);
    (void)sigaddset(&ours, SIGPIPE);
    if (posix_spawn_file_actions_init(&files) != 0) return -ENOMEM;
    if (posix_spawnattr_init(&how) != 0) return posix_spawn_file_actions_destroy(&files), -ENOMEM;
    int r = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (r == 0) r = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (r == 0) r = posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    if (r == 0) r = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (r == 0) r = posix_spawnattr_setsigmask(&how, &none);
    if (r == 0) r = posix_spawnattr_setsigdefault(&how, &ours);
    if (r == 0) r = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (r == 0) r = posix_spawn(ret, program, &files, &how, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&how);
    return -r;
}

int tools_run(struct tools *ts, const char *const *arguments, size_t n, tool_ended_fn ended,
              void *arg, struct tool **ret)
{
    CLEANUP(closep) int in = -1;
    CLEANUP(closep) int pidfd = -1;
    int pipe_ends[2];
    char *argv[ARGUMENTS_MAX + 2] = {ts->program};
    pid_t pid = -1;
    if (ts->n >= TOOLS_MAX) return -EBUSY;
    if (n > ARGUMENTS_MAX) return -E2BIG;
    memcpy(argv + 1, arguments, n * sizeof(*argv));
    /* Both ends: one that prints more than the pipe holds fails, instead of waiting for us. */
    if (pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) < 0) return -errno;
    in = pipe_ends[0];
    int r = spawn(ts->program, argv, pipe_ends[1], &pid);
    (void)close(pipe_ends[1]);
    if (r < 0) return r;
    pidfd = pidfd_open(pid, 0);
    struct tool *t = xnew(struct tool);
    *t = (struct tool){.of = ts, .pid = pid, .pidfd = pidfd, .out = in, .ended = ended, .arg = arg};
    r = pidfd < 0 ? -errno : loop_add_fd(ts->loop, pidfd, EPOLLIN, on_exited, t, &t->exited);
    if (r < 0) { /* out of descriptors: it has hardly begun, so its end is a moment away */
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        free(t);
        return r;
    }
    in = pidfd = -1;
    t->next = ts->first;
    ts->first = t;
    ts->n++;
    *ret = t;
    return 0;
}

void tool_leave(struct tool *t)
{
    t->ended = NULL;
    end_it(t);
}
