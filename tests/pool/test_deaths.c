/* SPDX-License-Identifier: MIT */
/*
 * Death at every point: one scenario of operations is run once whole, which tells the points that
 * it comes by (common/death.h), then once for each point, where poold kills itself. It comes back,
 * the heads attach again with what they hold and ask again what has no answer, and every step of
 * the scenario must still end as it would have (model.h). A point of the source that the scenario
 * never comes by is a failure.
 *
 * usage: test_deaths POOLD POOLCTL SOURCE    CISTERN_SWEEP_TIMES: passages a point, at most;
 * CISTERN_DIE_AT: only this one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "model.h"

enum { N_STAGES = 2, CHUNKS = 16, ROWS = 6, STARTS = 3, POINTS_MAX = 200, NAME_BYTES = 40 };

static const char *poold, *poolctl;

/* ---- another process, that a step waits for ---- */

struct child {
    struct world *world;
    pid_t pid;
    int pidfd;
    struct loop_source *exited;
    bool gone;
    int status;
};

static void on_child(void *arg, uint32_t events)
{
    (void)events;
    struct child *c = arg;
    require(waitpid(c->pid, &c->status, 0) == c->pid, "waitpid: %s", strerror(errno));
    c->gone = true;
    loop_remove(TAKE(c->exited));
    (void)close(c->pidfd);
    world_stir(c->world);
}

static void child_start(struct child *c, struct world *w, char *const *arguments)
{
    *c = (struct child){.world = w};
    c->pid = fork();
    require(c->pid >= 0, "fork: %s", strerror(errno));
    if (c->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)unsetenv("NOTIFY_SOCKET");
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (null < 0 || dup2(null, 1) < 0) _exit(127);
        (void)execv(arguments[0], arguments);
        _exit(127);
    }
    c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    require(loop_add_fd(w->loop, c->pidfd, EPOLLIN, on_child, c, &c->exited) == 0, "no pidfd");
}

static bool is_gone(void *arg) { return ((struct child *)arg)->gone; }

static bool has_died(void *arg)
{
    const struct world *w = arg;
    return w->fell;
}

/* poolctl, again when poold died under it, which it tells by its status. */
static void tool(struct model *m, const char *command, const char *what, const char *file)
{
    enum { UNREACHED = 2 };
    char conf[96];
    (void)snprintf(conf, sizeof(conf), "%s/conf", m->world->dir);
    char *arguments[] = {(char *)poolctl, "--config",   conf, (char *)command,
                         (char *)what,    (char *)file, NULL};
    struct child c;
    bool fell = m->world->fell;
    child_start(&c, m->world, arguments);
    world_run(m->world, is_gone, &c);
    if (c.status != 0 && WEXITSTATUS(c.status) == UNREACHED && m->world->want.die_at && !fell) {
        world_run(m->world, has_died, m->world);
        model_settle(m); /* everybody is attached again */
        child_start(&c, m->world, arguments);
        world_run(m->world, is_gone, &c);
    }
    bool repeated = strcmp(command, "drop") == 0 && m->world->fell && !fell;
    require(c.status == 0 || repeated, "poolctl %s %s: status %#x", command, what, c.status);
}

static const char *row_name(const struct model *m, uint32_t row, char ret[40])
{
    (void)snprintf(ret, 40, "%u:%llu", row, (unsigned long long)m->seen[row].body.generation);
    return ret;
}

/* ---- a head that dies ---- */

struct victim {
    struct head head;
    struct world world;
    struct op *op;
};

static uint32_t victim_rows(void *arg, struct head *h, uint32_t ret[LANES_MAX])
{
    (void)h;
    const struct victim *v = arg;
    if (!v->op || !v->op->answered) return 0;
    ret[0] = v->op->answer.row;
    return 1;
}

static bool victim_is_up(void *arg)
{
    const struct victim *v = arg;
    return head_is_up(&v->head) && v->head.life > 0;
}

static bool victim_is_answered(void *arg)
{
    const struct victim *v = arg;
    return v->op->answered;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

/* Attaches as pipeline 1, opens a conversation, computes it, says so, and stays. */
static int victim(const char *dir, int out)
{
    static struct victim v;
    world_visit(&v.world, dir);
    v.head = (struct head){.rows = victim_rows, .arg = &v};
    head_init(&v.head, &v.world, 1, N_STAGES);
    world_run(&v.world, victim_is_up, &v);
    v.op = head_op(&v.head, OP_OPEN);
    v.op->gateway = 5;
    v.op->n_tokens = 20;
    for (uint32_t i = 0; i < 20; i++)
        v.op->tokens[i] = 7000 + i;
    op_send(v.op);
    world_run(&v.world, victim_is_answered, &v);
    struct window *w = head_compose(&v.head);
    w->row = v.op->answer.row;
    w->lease = v.op->answer.lease;
    w->from = 0;
    w->to = 20;
    memcpy(w->table, pool_table(v.head.control, w->row), 3 * sizeof(w->table[0]));
    memcpy(w->tokens, v.op->tokens, 20 * sizeof(w->tokens[0]));
    head_execute(&v.head, 1);
    if (write(out, &v.op->answer, sizeof(v.op->answer)) < 0) return 1;
    (void)loop_set_timer(v.world.patience, 0, 0);
    world_run(&v.world, never, NULL);
    return 0;
}

struct listener {
    struct model *m;
    int fd;
    bool heard;
    struct answer answer;
};

static void on_heard(void *arg, uint32_t events)
{
    (void)events;
    struct listener *l = arg;
    l->heard = read(l->fd, &l->answer, sizeof(l->answer)) == sizeof(l->answer);
    world_stir(l->m->world);
}

static bool is_heard(void *arg) { return ((struct listener *)arg)->heard; }

static bool is_waiting(void *arg)
{
    const struct listener *l = arg;
    struct pool_body b;
    (void)pool_row_read(&pool_rows(l->m->head[0].control)[l->answer.row], &b);
    return b.state == POOL_WAITING && b.generation == l->answer.generation;
}

static void on_look(void *arg) { world_stir(arg); }

/* A whole pipeline of another process is killed: its conversation waits for its gateway. */
static void step_victim(struct model *m)
{
    int ends[2];
    struct child c;
    struct listener l = {.m = m};
    struct loop_source *readable, *timer;
    char end[12];
    require(pipe(ends) == 0, "pipe: %s", strerror(errno));
    l.fd = ends[0];
    (void)snprintf(end, sizeof(end), "%d", ends[1]);
    require(loop_add_fd(m->world->loop, l.fd, EPOLLIN, on_heard, &l, &readable) == 0 &&
                loop_add_timer(m->world->loop, on_look, m->world, &timer) == 0,
            "no source");
    char *arguments[] = {"/proc/self/exe", "--victim", m->world->dir, end, NULL};
    child_start(&c, m->world, arguments);
    world_run(m->world, is_heard, &l);
    loop_remove(readable);
    tool(m, "drain", "1.0", NULL); /* it ends with the worker */
    (void)kill(c.pid, SIGKILL);
    world_run(m->world, is_gone, &c);
    (void)loop_set_timer(timer, 1000, 1000);
    world_run(m->world, is_waiting, &l);
    loop_remove(timer);
    (void)close(ends[0]);
    (void)close(ends[1]);
    struct row *r = &m->row[l.answer.row];
    *r = (struct row){.generation = l.answer.generation,
                      .lease = l.answer.lease,
                      .closing = true,
                      .expected = 20,
                      .n_tokens = 20};
    for (uint32_t i = 0; i < 20; i++)
        r->tokens[i] = 7000 + i;
    m->has_seen = false;
}

/* ---- the scenario ---- */

static void step(struct model *m)
{
    model_settle(m);
    model_check(m);
}

/* A prompt whose first common tokens are those of its family. */
static uint32_t open_row(struct model *m, uint32_t family, uint32_t common, uint32_t n)
{
    uint32_t tokens[CONTEXT];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = family * 1000 + i + (i >= common ? 500 : 0);
    require(model_open(m, &m->head[0], tokens, n), "no lane is free");
    step(m);
    require(m->last.code == CISTERN__CODE__OK, "an open of the scenario: code %d", m->last.code);
    return m->last.row;
}

static void compute(struct model *m, uint32_t row, uint32_t to)
{
    model_compute(m, row, to);
    head_execute(&m->head[0], 1);
    model_check(m);
}

static void close_row(struct model *m, uint32_t row, uint32_t keep, bool resume)
{
    require(model_close(m, row, keep, resume), "row %u can't be closed", row);
    step(m);
}

static uint32_t cached(const struct model *m, uint32_t row)
{
    return m->seen[row].body.base + m->seen[row].body.copy_cells;
}

/* One conversation grows, is cached, is gone on with, is forked, cut, and gives back. */
static void step_conversations(struct model *m)
{
    uint32_t a = open_row(m, 1, 40, 40);
    compute(m, a, 40);
    require(model_grow(m, a, 70), "grow");
    step(m);
    compute(m, a, 60);
    close_row(m, a, UINT32_MAX, false);
    uint32_t b = open_row(m, 1, 40, 50); /* 20 of 60 cells are cut off: it is taken over... */
    require(b != a || cached(m, b) == 40, "the takeover finds %u cells", cached(m, b));
    compute(m, b, 50);
    close_row(m, b, UINT32_MAX, false);
    uint32_t c = open_row(m, 1, 20, 30); /* 30 are too many: it lends its beginning */
    require(c != b && cached(m, c) == 20, "the fork finds %u cells", cached(m, c));
    compute(m, c, 30);
    require(model_grow(m, c, 60), "grow");
    step(m);
    require(model_truncate(m, c, 10), "truncate"); /* inside a chunk that both hold */
    step(m);
    compute(m, c, 25);
    close_row(m, c, UINT32_MAX, false);
    uint32_t d = open_row(m, 2, 100, 100); /* what is cached gives back */
    compute(m, d, 100);
    uint32_t e = open_row(m, 3, 60, 60);
    compute(m, e, 50);
    close_row(m, d, 90, false);
    close_row(m, e, UINT32_MAX, true);
    require(model_resume(m, &m->head[0], e, (uint32_t[]){5, 6, 7}, 3, true), "resume");
    step(m);
    require(m->last.row == e, "row %u was to go on, not %u", e, m->last.row);
    compute(m, e, 60);
    close_row(m, e, UINT32_MAX, false);
}

/* What a tool restored is the saved conversation, in a row of its own. */
static void know_restored(struct model *m, uint32_t from)
{
    for (uint32_t row = 0; row < m->n_rows; row++) {
        struct pool_body b;
        (void)pool_row_read(&pool_rows(m->head[0].control)[row], &b);
        if (b.state != POOL_IDLE || b.generation == m->row[row].generation) continue;
        struct row known = m->row[from];
        known.generation = b.generation;
        known.salt = b.salt;
        known.closing = false;
        m->row[row] = known;
    }
    m->has_seen = false;
}

static void step_tools(struct model *m)
{
    char name[40], file[96];
    (void)snprintf(file, sizeof(file), "%s/saved", m->world->dir);
    uint32_t row = open_row(m, 4, 40, 40);
    compute(m, row, 40);
    close_row(m, row, UINT32_MAX, false);
    tool(m, "save", row_name(m, row, name), file);
    model_check(m);
    tool(m, "restore", file, NULL);
    know_restored(m, row);
    model_check(m);
    tool(m, "drain", "0", NULL);
    tool(m, "undrain", "0", NULL);
    tool(m, "drop", row_name(m, row, name), NULL);
    model_check(m);
}

/* poold dies once in any case, and a head has forgotten a conversation meanwhile. */
static void step_restart(struct model *m)
{
    uint32_t row = open_row(m, 5, 30, 30);
    compute(m, row, 30);
    uint32_t n_deaths = m->world->n_deaths;
    m->forget_one_in = 1;
    world_kill(m->world);
    while (m->world->n_deaths == n_deaths || !m->head[0].stage[0].attached) {
        model_settle(m);
        if (m->world->n_deaths == n_deaths) (void)loop_run(m->world->loop);
    }
    m->forget_one_in = 0;
    step(m);
    require(m->row[row].head == NULL, "row %u was not forgotten", row);
    row = open_row(m, 5, 30, 40);
    compute(m, row, 40);
    close_row(m, row, UINT32_MAX, false);
}

static void scenario(const struct world_want *want, uint32_t n_falls)
{
    struct world w;
    static struct model m;
    world_init(&w, want);
    model_init(&m, &w, 1, (uint32_t[]){N_STAGES});
    step(&m);
    step_conversations(&m);
    step_tools(&m);
    step_victim(&m);
    step(&m);
    head_reset(&m.head[0]);
    step(&m);
    step_restart(&m);
    require(w.n_falls >= n_falls, "it was killed %u times, not %u", w.n_falls, n_falls);
    model_fini(&m);
    world_fini(&w);
}

/* ---- the sweep ---- */

struct point {
    char name[NAME_BYTES];
    uint32_t times[STARTS]; /* passages in each start of poold */
};

struct points {
    struct point at[POINTS_MAX];
    uint32_t n;
};

static struct point *find(struct points *p, const char *name)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].name, name) == 0) return &p->at[i];
    return NULL;
}

static void read_source(const char *path, struct points *p)
{
    CLEANUP(fclosep) FILE *f = fopen(path, "r");
    char line[256];
    require(f, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof(line), f)) {
        char name[NAME_BYTES];
        if (sscanf(line, " DEATH_POINT(\"%39[a-z-]\");", name) != 1 || find(p, name)) continue;
        require(p->n < POINTS_MAX, "more points than this test has room for");
        (void)strcpy(p->at[p->n++].name, name);
    }
}

static void read_sources(const char *source, struct points *p)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/poold", source);
    DIR *dir = opendir(path);
    require(dir, "%s: %s", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir));) {
        size_t n = strlen(e->d_name);
        if (n < 2 || strcmp(e->d_name + n - 2, ".c") != 0) continue;
        (void)snprintf(path, sizeof(path), "%s/poold/%s", source, e->d_name);
        read_source(path, p);
    }
    (void)closedir(dir);
}

static void read_log(const char *log, struct points *p)
{
    char path[160], name[NAME_BYTES];
    for (uint32_t start = 0; start < STARTS; start++) {
        (void)snprintf(path, sizeof(path), "%s.%u", log, start);
        CLEANUP(fclosep) FILE *f = fopen(path, "r");
        while (f && fscanf(f, "%39s", name) == 1)
            if (find(p, name)) find(p, name)->times[start]++;
        (void)unlink(path);
    }
}

struct run {
    const char *die_at, *die_next, *log;
    uint32_t start;
    uint32_t n_falls; /* that it must have, at least */
};

static pid_t run_scenario(const struct run *run)
{
    (void)fflush(stdout);
    pid_t pid = fork();
    require(pid >= 0, "fork: %s", strerror(errno));
    if (pid > 0) return pid;
    struct world_want want = {.program = poold,
                              .n_cells = CHUNKS * CHUNK,
                              .chunk_cells = CHUNK,
                              .n_rows = ROWS,
                              .die_at = run->die_at,
                              .die_next = run->die_next,
                              .die_start = run->start,
                              .death_log = run->log};
    scenario(&want, run->n_falls);
    exit(0);
}

static bool ended_well(pid_t pid)
{
    int status = 0;
    require(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
    if (WIFSIGNALED(status)) (void)printf("ended by signal %d\n", WTERMSIG(status));
    return status == 0;
}

/* Passages to die at: the first ones, the last one, and some between. */
static uint32_t passage(uint32_t i, uint32_t n, uint32_t at_most)
{
    if (n <= at_most) return i + 1;
    return 1 + (uint32_t)((uint64_t)i * (n - 1) / (at_most - 1));
}

/* The passages of one point. The last ones need not come: how often the pages are looked at varies.
 */
static uint32_t sweep(const struct point *p, uint32_t at_most)
{
    uint32_t bad = 0;
    for (uint32_t start = 0; start < 2; start++)
        for (uint32_t i = 0; i < min_u32(p->times[start], at_most); i++) {
            char die_at[NAME_BYTES + 12];
            uint32_t n = passage(i, p->times[start], at_most);
            (void)snprintf(die_at, sizeof(die_at), "%s:%u", p->name, n);
            struct run run = {.die_at = die_at, .start = start, .n_falls = n == 1};
            if (ended_well(run_scenario(&run))) continue;
            (void)printf("FAILED: death at %s in start %u\n", die_at, start);
            bad++;
        }
    return bad;
}

/* A point that only a poold comes by that makes good what the last one's death left. */
static uint32_t sweep_again(const struct point *p)
{
    struct run run = {.die_at = "table-reserve:2", .die_next = p->name, .n_falls = 2};
    if (ended_well(run_scenario(&run))) return 0;
    (void)printf("FAILED: death at %s after %s, or it is never reached\n", p->name, run.die_at);
    return 1;
}

int main(int argc, char **argv)
{
    static struct points points;
    if (argc == 4 && strcmp(argv[1], "--victim") == 0) return victim(argv[2], atoi(argv[3]));
    if (argc != 4) return 2;
    poold = argv[1];
    poolctl = argv[2];
    const char *one = getenv("CISTERN_DIE_AT");
    if (one && *one) {
        CLEANUP(freep) char *die_at = strdup(one);
        (void)unsetenv("CISTERN_DIE_AT"); /* what poold inherits of it would kill it each time */
        return !ended_well(run_scenario(&(struct run){.die_at = die_at, .n_falls = 1}));
    }
    read_sources(argv[3], &points);
    const char *times = getenv("CISTERN_SWEEP_TIMES");
    uint32_t at_most = times && *times ? (uint32_t)max_u64(2, strtoull(times, NULL, 10)) : 3,
             bad = 0;
    char log[64];
    (void)snprintf(log, sizeof(log), "/dev/shm/cistern-deaths-%d", getpid());
    require(ended_well(run_scenario(&(struct run){.log = log})),
            "the scenario fails without a death");
    read_log(log, &points);
    for (uint32_t i = 0; i < points.n; i++) {
        const struct point *p = &points.at[i];
        bool passed = p->times[0] + p->times[1] > 0;
        bad += passed ? sweep(p, at_most) : sweep_again(p);
    }
    (void)printf("%u points, %u failures\n", points.n, bad);
    return bad != 0 || points.n == 0;
}
