/* SPDX-License-Identifier: MIT */
/* poold as a child process: started, killed, started again. Called by heads and tests. */
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { PATIENCE_US = 300000000 }; /* a bound for what never comes, not a measure */

static struct world *present; /* for fail(): a test has one world at a time */

void fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    (void)vfprintf(stderr, format, ap);
    va_end(ap);
    (void)fputc('\n', stderr);
    if (present) {
        char command[160];
        (void)fprintf(stderr, "---- poold's log (%s), died %u times\n",
                      present->want.die_at ? present->want.die_at : "no death point",
                      present->n_deaths);
        (void)snprintf(command, sizeof(command), "tail -n 30 %s/log >&2; rm -r %s", present->dir,
                       present->dir);
        (void)kill(present->pid, SIGKILL);
        if (system(command) != 0) (void)fputs("(none)\n", stderr);
    }
    exit(1);
}

static void write_config(const struct world *w)
{
    char path[96];
    (void)snprintf(path, sizeof(path), "%s/conf", w->dir);
    CLEANUP(fclosep) FILE *f = fopen(path, "w");
    require(f, "%s: %s", path, strerror(errno));
    (void)fprintf(
        f,
        "[run]\ndir = %s/run\n[pool]\ndir = %s/pool\ncells = %u\nchunk = %u\n"
        "pipelines = %u\n"
        "conversations = %u\nlock = no\nthreads = 1\nattach_ms = 600000\nwhen_dry = %s\n"
        "[worker]\nstuck_ms = 3600000\nstart_ms = 3600000\n[gateway]\nqueue_wait_ms = 0\n",
        w->dir, w->dir, w->want.n_cells, w->want.chunk_cells, max_u32(w->want.n_pipelines, 1),
        w->want.n_rows, w->want.when_dry_waits ? "wait" : "end");
}

/* What this start of it is to die at; NULL: nothing. */
static const char *death_of(const struct world *w)
{
    if (w->n_deaths == w->want.die_start) return w->want.die_at;
    return w->n_deaths == w->want.die_start + 1 && w->fell ? w->want.die_next : NULL;
}

static void become_poold(const struct world *w)
{
    char path[96], log[96];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)snprintf(path, sizeof(path), "%s/conf", w->dir);
    (void)snprintf(log, sizeof(log), "%s/log", w->dir);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(127);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    const char *die_at = death_of(w);
    if (die_at) (void)setenv("CISTERN_DIE_AT", die_at, 1);
    char numbered[160];
    (void)snprintf(numbered, sizeof(numbered), "%s.%u", w->want.death_log, w->n_deaths);
    if (w->want.death_log) (void)setenv("CISTERN_DEATH_LOG", numbered, 1);
    (void)execl(w->want.program, "poold", "--config", path, (char *)NULL);
    _exit(127);
}

static void on_exited(void *arg, uint32_t events)
{
    (void)events;
    struct world *w = arg;
    int status = 0;
    require(waitpid(w->pid, &status, 0) == w->pid, "waitpid: %s", strerror(errno));
    bool falls = death_of(w) && !w->killed;
    bool meant = w->killed || falls;
    require(meant && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
            "poold ended by itself, status %#x", status);
    w->fell |= falls;
    w->n_falls += falls;
    w->killed = false;
    w->n_deaths++;
    loop_remove(TAKE(w->exited));
    (void)close(w->pidfd);
    world_start(w);
    world_stir(w);
}

void world_start(struct world *w)
{
    w->ready_us = 0;
    w->exec_us = now_us();
    w->pid = fork();
    require(w->pid >= 0, "fork: %s", strerror(errno));
    if (w->pid == 0) become_poold(w);
    w->pidfd = (int)syscall(SYS_pidfd_open, w->pid, 0);
    int r = loop_add_fd(w->loop, w->pidfd, EPOLLIN, on_exited, w, &w->exited);
    require(w->pidfd >= 0 && r == 0, "no pidfd: %s", strerror(errno));
}

static void on_notified(void *arg, uint32_t events)
{
    (void)events;
    struct world *w = arg;
    char text[4096];
    ssize_t n = recv(w->notify, text, sizeof(text) - 1, MSG_DONTWAIT);
    if (n <= 0) return;
    text[n] = 0;
    if (!w->ready_us && strstr(text, "READY=1")) w->ready_us = now_us();
    world_stir(w);
}

static void on_patience(void *arg)
{
    const struct world *w = arg;
    if (w->explain) w->explain(w->explain_arg);
    fail("nothing came of it within %d s", PATIENCE_US / 1000000);
}

static void listen_for_notifications(struct world *w)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/notify", w->dir);
    w->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    require(w->notify >= 0 && bind(w->notify, (struct sockaddr *)&a, sizeof(a)) == 0 &&
                loop_add_fd(w->loop, w->notify, EPOLLIN, on_notified, w, &w->notified) == 0,
            "%s: %s", a.sun_path, strerror(errno));
    (void)setenv("NOTIFY_SOCKET", a.sun_path, 1);
}

void world_init(struct world *w, const struct world_want *want)
{
    *w = (struct world){.want = *want, .pidfd = -1, .notify = -1};
    /* Whose it is: a killed test's is removed by tests/integration/harness.py. */
    (void)snprintf(w->dir, sizeof(w->dir), "/dev/shm/cistern-pool-%d-XXXXXX", getpid());
    require(mkdtemp(w->dir), "%s: %s", w->dir, strerror(errno));
    present = w;
    write_config(w);
    require(loop_new(&w->loop) == 0, "no loop");
    require(loop_add_timer(w->loop, on_patience, w, &w->patience) == 0, "no timer");
    listen_for_notifications(w);
    world_start(w);
}

void world_visit(struct world *w, const char *dir)
{
    *w = (struct world){.pidfd = -1, .notify = -1};
    (void)snprintf(w->dir, sizeof(w->dir), "%s", dir);
    require(loop_new(&w->loop) == 0 && loop_add_timer(w->loop, on_patience, w, &w->patience) == 0,
            "no loop");
}

void world_fini(struct world *w)
{
    int status = 0;
    (void)kill(w->pid, SIGTERM);
    require(waitpid(w->pid, &status, 0) == w->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "poold ended with status %#x after SIGTERM", status);
    (void)close(w->pidfd);
    loop_free(w->loop);
    (void)close(w->notify);
    char command[96];
    (void)snprintf(command, sizeof(command), "rm -r %s", w->dir);
    require(system(command) == 0, "%s cannot be removed", w->dir);
    present = NULL;
}

void world_kill(struct world *w)
{
    w->killed = true;
    (void)kill(w->pid, SIGKILL);
}

void world_stir(struct world *w) { loop_stop(w->loop, 0); }

void world_run(struct world *w, bool (*done)(void *arg), void *arg)
{
    (void)loop_set_timer(w->patience, PATIENCE_US, 0);
    while (!done(arg))
        require(loop_run(w->loop) == 0, "the loop failed");
    (void)loop_set_timer(w->patience, 0, 0);
}
