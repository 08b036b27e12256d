/* SPDX-License-Identifier: MIT */
/*
 * Lifelines, pidfds and process records. Owned by the daemon; calls dead() once for each process
 * whose death is sure.
 */
#include "poold/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "common/death.h"
#include "common/log.h"

struct processes {
    struct loop *loop;
    uint64_t self;
    int listener;
    char *path;
    struct loop_source *incoming;
    struct processes_events events;
    struct process *first;
    struct segment *seg;
};

/* ---- what /proc knows ---- */

static int read_text(const char *path, char *ret, size_t room)
{
    CLEANUP(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, room - 1);
    if (n < 0) return -errno;
    ret[n] = 0;
    return 0;
}

/* Field 22; the second field, the name, may hold spaces and parentheses of its own. */
uint64_t process_start_time(uint32_t pid)
{
    char path[40], text[1024];
    (void)snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    if (read_text(path, text, sizeof(text)) < 0) return 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

void process_boot_id(char ret[40])
{
    memset(ret, 0, 40);
    if (read_text("/proc/sys/kernel/random/boot_id", ret, 40) < 0) return;
    ret[strcspn(ret, "\n")] = 0;
}

/* The pid that a pidfd stands for, in our namespace; 0 when it is none of ours. */
static uint32_t pidfd_pid(int pidfd)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    if (read_text(path, text, sizeof(text)) < 0) return 0;
    const char *at = strstr(text, "\nPid:");
    long pid = at ? strtol(at + 5, NULL, 10) : 0;
    return pid > 0 ? (uint32_t)pid : 0;
}

/* ---- one process ---- */

const char *process_name(const struct process *who)
{
    static char name[64];
    static const char *const roles[] = {"process", "worker", "gateway", "tool"};
    if (who->role == POOL_ROLE_WORKER && who->placed)
        (void)snprintf(name, sizeof(name), "worker %u.%u (pid %u)", who->pipeline, who->stage,
                       who->pid);
    else
        (void)snprintf(name, sizeof(name), "%s (pid %u)", roles[who->role], who->pid);
    return name;
}

struct process *processes_first(const struct processes *p) { return p->first; }

struct process *process_find(const struct processes *p, uint64_t incarnation)
{
    for (struct process *w = p->first; w; w = w->next)
        if (w->incarnation == incarnation) return w;
    return NULL;
}

struct process *process_at(const struct processes *p, uint32_t pipeline, uint32_t stage)
{
    for (struct process *w = p->first; w; w = w->next)
        if (w->placed && w->pipeline == pipeline && w->stage == stage) return w;
    return NULL;
}

static void close_lifeline(struct process *w)
{
    loop_remove(TAKE(w->readable));
    closep(&w->sock);
    w->sock = -1;
}

static void process_free(struct process *w)
{
    struct process **at = &w->all->first;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    close_lifeline(w);
    loop_remove(w->exited);
    closep(&w->pidfd);
    closep(&w->arena_fd);
    free(w);
}

/* Death before it: the next poold finds the process dead and does the same. */
static void forget(struct pool_process *r)
{
    DEATH_POINT("process-dead");
    shm_store_u64(&r->incarnation, 0);
    DEATH_POINT("process-forgotten");
}

static void confirmed_dead(struct process *w)
{
    struct processes *all = w->all;
    all->events.dead(all->events.arg, w);
    if (w->record >= 0 && all->seg) forget(&all->seg->processes[w->record]);
    process_free(w);
}

static void on_exited(void *arg, uint32_t events)
{
    (void)events;
    confirmed_dead(arg);
}

void process_kill(struct process *w, const char *reason)
{
    if (w->dying) return;
    w->dying = true;
    log_warn("%s: %s; killing it", process_name(w), reason);
    if (w->record >= 0 && w->all->seg) {
        DEATH_POINT("process-dying");
        w->all->seg->processes[w->record].dying = 1;
    }
    if (syscall(SYS_pidfd_send_signal, w->pidfd, SIGKILL, NULL, 0) < 0 && errno != ESRCH)
        log_error("%s: cannot be killed: %s", process_name(w), strerror(errno));
}

void process_take_beat(struct process *w, const struct process_beat *b, uint64_t now)
{
    const struct process_beat *last = &w->beat;
    bool goes_on =
        b->last_window != last->last_window || b->steps != last->steps || b->phase != last->phase;
    bool idle = b->due_window <= b->last_window;
    if (goes_on || idle) w->moved_us = now;
    w->beat_us = now;
    w->beat = *b;
}

void process_excuse(struct process *w, uint64_t now) { w->beat_us = w->moved_us = now; }

const char *process_stuck(const struct process *w, uint64_t now, uint64_t stuck_us,
                          uint64_t start_us)
{
    if (w->beat.phase != PROCESS_SERVING)
        return now - w->beat_us < start_us ? NULL
                                           : "it starts, and has been silent for worker.start_ms";
    if (now - w->beat_us >= stuck_us) return "it serves, and has been silent for worker.stuck_ms";
    if (w->beat_us - w->moved_us >= stuck_us) /* by what it told, not by what is on its way */
        return "it has windows in flight, and its device has not gone on for worker.stuck_ms";
    return NULL;
}

int process_send(struct process *w, struct lifeline_files *packet, const int *fds, uint32_t n_fds)
{
    if (w->sock < 0) return -ENOTCONN;
    packet->magic = LIFELINE_MAGIC;
    packet->version = LIFELINE_VERSION;
    return lifeline_send(w->sock, packet, sizeof(*packet), fds, n_fds);
}

/* Who has a record may write the pool until it is surely dead; nobody else may. */
static void lifeline_closed(struct process *w)
{
    close_lifeline(w);
    if (w->role == POOL_ROLE_WORKER || w->record >= 0)
        process_kill(w, "its lifeline closed");
    else
        confirmed_dead(w);
}

static void on_readable(void *arg, uint32_t events)
{
    (void)events;
    struct process *w = arg;
    char byte;
    ssize_t n = recv(w->sock, &byte, 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    lifeline_closed(w); /* after hello a process says nothing here */
}

static int watch_exit(struct process *w)
{
    return loop_add_fd(w->all->loop, w->pidfd, EPOLLIN, on_exited, w, &w->exited);
}

/* ---- a new lifeline ---- */

static void refuse(int sock, uint64_t self, const char *text)
{
    struct lifeline_files packet = {
        .magic = LIFELINE_MAGIC,
        .version = LIFELINE_VERSION,
        .kind = LIFELINE_REFUSED,
        .incarnation = self,
    };
    (void)snprintf(packet.text, sizeof(packet.text), "%s", text);
    (void)lifeline_send(sock, &packet, sizeof(packet), NULL, 0);
    log_warn("refused a lifeline: %s", text);
}

/* Who it is, from the kernel and not from what it says. */
static const char *check_hello(int sock, const struct lifeline_hello *hello, int pidfd,
                               struct ucred *ret)
{
    socklen_t bytes = sizeof(*ret);
    if (hello->magic != LIFELINE_MAGIC || hello->version != LIFELINE_VERSION)
        return "another version of the lifeline is spoken there; install the same release "
               "everywhere";
    if (hello->incarnation == 0 || hello->role == POOL_ROLE_NONE || hello->role > POOL_ROLE_TOOL)
        return "the hello is malformed";
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, ret, &bytes) < 0 || ret->pid <= 0)
        return "poold can't see its pid: run it in poold's pid namespace or one below";
    if (pidfd < 0 || pidfd_pid(pidfd) != (uint32_t)ret->pid) return "the pidfd is not its own";
    if (kill(ret->pid, 0) < 0) return "poold may not signal it: run it as poold's user";
    return NULL;
}

/* A process that poold knew before its own restart comes back on the record that was adopted. */
static struct process *process_for(struct processes *p, const struct lifeline_hello *hello,
                                   const struct ucred *cred)
{
    struct process *w = process_find(p, hello->incarnation);
    if (w) return w->sock < 0 && !w->dying && w->pid == (uint32_t)cred->pid ? w : NULL;
    w = xnew(struct process);
    *w = (struct process){
        .next = p->first,
        .all = p,
        .incarnation = hello->incarnation,
        .start_time = process_start_time((uint32_t)cred->pid),
        .pid = (uint32_t)cred->pid,
        .role = hello->role,
        .uid = cred->uid,
        .sock = -1,
        .arena_fd = -1,
        .pidfd = -1,
        .record = -1,
    };
    p->first = w;
    return w;
}

static int welcome(struct process *w)
{
    struct lifeline_files packet = {.kind = LIFELINE_WELCOME, .incarnation = w->all->self};
    return process_send(w, &packet, NULL, 0);
}

/* What it hands back is looked at when its stage's arena is wanted (attach.c). */
static void take_arena(struct process *w, const struct lifeline_arena *arena, int fd)
{
    closep(&w->arena_fd);
    w->arena_fd = w->role == POOL_ROLE_WORKER && arena->bytes ? TAKE_FD(fd) : -1;
    w->arena = w->arena_fd >= 0 ? *arena : (struct lifeline_arena){0};
    closep(&fd);
}

/* Reads the hello, which comes right behind the connection. */
static void admit(struct processes *p, int sock)
{
    struct lifeline_hello hello;
    int fds[LIFELINE_FDS_MAX];
    uint32_t n_fds = 0;
    struct ucred cred;
    if (lifeline_receive(sock, &hello, sizeof(hello), fds, &n_fds) < 0) return;
    CLEANUP(closep) int pidfd = n_fds > 0 ? fds[0] : -1;
    CLEANUP(closep) int arena_fd = n_fds > 1 ? fds[1] : -1;
    for (uint32_t i = 2; i < n_fds; i++)
        (void)close(fds[i]);
    const char *no = check_hello(sock, &hello, pidfd, &cred);
    struct process *w = no ? NULL : process_for(p, &hello, &cred);
    if (!w) return refuse(sock, p->self, no ? no : "its incarnation is known already");
    take_arena(w, &hello.arena, TAKE_FD(arena_fd));
    w->sock = fcntl(sock, F_DUPFD_CLOEXEC, 0);
    w->beat_us = w->moved_us = now_us();
    int r = 0;
    if (w->pidfd < 0) {
        w->pidfd = TAKE_FD(pidfd);
        if (w->role == POOL_ROLE_WORKER) r = watch_exit(w);
    }
    if (r == 0) r = loop_add_fd(p->loop, w->sock, EPOLLIN, on_readable, w, &w->readable);
    if (r == 0) r = welcome(w);
    if (r == 0) return;
    log_error("%s: its lifeline fails: %s", process_name(w), strerror(-r));
    lifeline_closed(w);
}

/* A connection whose hello is not there yet waits in its own source. */
struct newcomer {
    struct processes *p;
    int sock;
    struct loop_source *readable;
};

static void on_hello(void *arg, uint32_t events)
{
    (void)events;
    CLEANUP(freep) struct newcomer *n = arg;
    loop_remove(n->readable);
    admit(n->p, n->sock);
    (void)close(n->sock);
}

static void on_incoming(void *arg, uint32_t events)
{
    (void)events;
    struct processes *p = arg;
    int sock = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0) return;
    struct newcomer *n = xnew(struct newcomer);
    *n = (struct newcomer){.p = p, .sock = sock};
    if (loop_add_fd(p->loop, sock, EPOLLIN, on_hello, n, &n->readable) == 0) return;
    (void)close(sock);
    free(n);
}

static int listen_at(struct processes *p, const char *run_dir, struct why *why)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (asprintf(&p->path, "%s/lifeline", run_dir) < 0) abort();
    if (strlen(p->path) >= sizeof(a.sun_path))
        return why_set(why, -ENAMETOOLONG,
                       "run.dir = %s: a socket's path has room for %zu bytes; choose a shorter one",
                       run_dir, sizeof(a.sun_path) - 1);
    memcpy(a.sun_path, p->path, strlen(p->path) + 1);
    (void)unlink(p->path); /* of a dead poold: the directory's lock is ours */
    p->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->listener < 0 || bind(p->listener, (struct sockaddr *)&a, sizeof(a)) < 0 ||
        listen(p->listener, 128) < 0)
        return why_set(why, -errno, "%s: cannot listen: %s", p->path, strerror(errno));
    return loop_add_fd(p->loop, p->listener, EPOLLIN, on_incoming, p, &p->incoming);
}

int processes_new(struct loop *l, const char *run_dir, uint64_t self,
                  const struct processes_events *events, struct why *why, struct processes **ret)
{
    struct processes *p = xnew(struct processes);
    *p = (struct processes){.loop = l, .self = self, .listener = -1, .events = *events};
    int r = listen_at(p, run_dir, why);
    if (r < 0) return processes_free(p), r;
    *ret = p;
    return 0;
}

void processes_free(struct processes *p)
{
    if (!p) return;
    while (p->first)
        process_free(p->first);
    loop_remove(p->incoming);
    closep(&p->listener);
    free(p->path);
    free(p);
}

/* ---- records ---- */

int process_record(struct process *w, struct segment *s)
{
    w->all->seg = s;
    int i = w->record;
    for (int k = 0; i < 0 && k < POOL_PROCESSES_MAX; k++)
        if (s->processes[k].incarnation == 0) i = k;
    if (i < 0) return -EMFILE;
    w->record = i;
    struct pool_process *r = &s->processes[i];
    if (r->incarnation == w->incarnation) return 0; /* it kept its record over poold's restart */
    DEATH_POINT("process-fields");
    *r = (struct pool_process){
        .start_time = w->start_time,
        .pid = w->pid,
        .role = w->role,
        .pipeline = w->pipeline,
        .stage = w->stage,
    };
    DEATH_POINT("process-record");
    shm_store_u64(&r->incarnation, w->incarnation);
    DEATH_POINT("process-recorded");
    return 0;
}

int process_arm(struct process *w, struct segment *s)
{
    if (w->record >= 0) return 0;
    int r = process_record(w, s);
    return r < 0 ? r : watch_exit(w);
}

void process_disarm(struct process *w)
{
    if (w->record < 0) return;
    forget(&w->all->seg->processes[w->record]);
    w->record = -1;
    loop_remove(TAKE(w->exited));
}

/* The pid may have been given to another process since: start times and boots are compared after
 * the pidfd is open, which pins the pid. */
static bool same_process(const struct pool_process *r, const struct segment *s)
{
    char boot[40];
    process_boot_id(boot);
    return strncmp(boot, s->h->boot_id, sizeof(boot)) == 0 &&
           process_start_time(r->pid) == r->start_time;
}

static void adopt(struct processes *p, struct segment *s, int record)
{
    const struct pool_process *r = &s->processes[record];
    struct process *w = xnew(struct process);
    *w = (struct process){
        .next = p->first,
        .all = p,
        .incarnation = r->incarnation,
        .start_time = r->start_time,
        .pid = r->pid,
        .role = r->role <= POOL_ROLE_TOOL ? r->role : POOL_ROLE_NONE,
        .sock = -1,
        .arena_fd = -1,
        .placed = r->role == POOL_ROLE_WORKER && r->pipeline < POOL_PIPELINES_MAX &&
                  r->stage < POOL_STAGES_MAX,
        .pipeline = r->pipeline,
        .stage = r->stage,
        .record = record,
        .beat_us = now_us(),
        .moved_us = now_us(),
        .beat.phase = PROCESS_SERVING,
        .pidfd = (int)syscall(SYS_pidfd_open, r->pid, 0),
    };
    p->first = w;
    if (w->pidfd < 0 || !same_process(r, s) || watch_exit(w) < 0) confirmed_dead(w);
}

void processes_leave_segment(struct processes *p)
{
    p->seg = NULL;
    for (struct process *w = p->first; w; w = w->next)
        w->record = -1;
}

void processes_adopt(struct processes *p, struct segment *s)
{
    p->seg = s;
    for (int i = 0; i < POOL_PROCESSES_MAX; i++) {
        if (s->processes[i].incarnation == 0) continue;
        uint32_t role = s->processes[i].role;
        if (role == POOL_ROLE_WORKER || role == POOL_ROLE_TOOL)
            adopt(p, s, i);
        else
            forget(&s->processes[i]);
    }
}

void processes_end_absent(struct processes *p)
{
    for (struct process *w = p->first; w; w = w->next)
        if (w->sock < 0 && w->record >= 0 && !w->dying)
            process_kill(w, "it has not come back since poold's restart");
}
