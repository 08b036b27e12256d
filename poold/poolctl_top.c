/* SPDX-License-Identifier: MIT */
/*
 * poolctl top: the pool once a second, from shared memory alone, so that looking costs poold
 * nothing and works while it is away. A terminal is repainted and read for q; anything else gets
 * one report a second.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "poold/poolctl.h"

enum { REFRESH_US = 1000000, BAR_COLUMNS = 50, LINES_PRESET = 24, HEAD_LINES = 14 };

struct top {
    struct termios before;
    bool terminal; /* stdout is one */
    bool raw;      /* stdin was changed */
    uint64_t windows[POOL_PIPELINES_MAX][POOL_STAGES_MAX],
        busy_us[POOL_PIPELINES_MAX][POOL_STAGES_MAX];
    uint64_t since_us;
};

static struct top top; /* restored at exit, whatever ends the process in order */

static void give_terminal_back(void)
{
    if (top.raw) (void)tcsetattr(STDIN_FILENO, TCSANOW, &top.before);
    if (top.terminal) printf("\033[?25h");
}

static void paint_cells(const struct ctl *c)
{
    uint64_t cells[CELLS_STATES], total = 0;
    pool_view_cells(c->view.h, cells);
    for (size_t i = 0; i < CELLS_STATES; i++)
        total += cells[i];
    for (size_t i = 0; i < CELLS_STATES; i++) {
        char bar[BAR_COLUMNS + 1] = "";
        memset(bar, '#', (size_t)(cells[i] * BAR_COLUMNS / total));
        printf("%-8s %10llu %5.1f %% %s\n", cells_names[i], (unsigned long long)cells[i],
               100.0 * (double)cells[i] / (double)total, bar);
    }
}

/* Since the last time; the first time there is nothing to compare with. */
static void paint_workers(const struct ctl *c)
{
    uint64_t now = now_us();
    double seconds = top.since_us ? (double)(now - top.since_us) / 1e6 : 0;
    for (uint32_t p = 0; p < POOL_PIPELINES_MAX; p++) {
        const struct pool_pipeline *pipe = &pool_pipelines(c->view.h)[p];
        if (pipe->n_stages == 0) continue;
        printf("pipeline %u%s:", p, pipe->draining ? " (drained)" : "");
        for (uint32_t s = 0; s < c->view.h->n_stages; s++) {
            const struct pool_page *page = pool_view_page(&c->view, p, s);
            uint64_t windows = page ? shm_load_u64(&page->windows) : 0;
            uint64_t busy = page ? shm_load_u64(&page->busy_us) : 0;
            if (seconds > 0)
                printf("  stage %u %.1f windows/s %3.0f %% busy", s,
                       (double)(windows - top.windows[p][s]) / seconds,
                       (double)(busy - top.busy_us[p][s]) / seconds / 1e4);
            top.windows[p][s] = windows;
            top.busy_us[p][s] = busy;
        }
        printf("\n");
    }
    top.since_us = now;
}

static int by_life(const void *a, const void *b)
{
    static const char order[] = "ahwckf"; /* active, held, waiting, cached, ... by first letter */
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    const char *sx = strchr(order, json_text(x, "state")[0]);
    const char *sy = strchr(order, json_text(y, "state")[0]);
    if (sx != sy) return sx < sy ? -1 : 1;
    return json_number(x, "idle_ms") < json_number(y, "idle_ms") ? -1 : 1;
}

static void paint_conversations(struct ctl *c, int lines)
{
    json_t *all = look_conversations(c), *list = json_object_get(all, "conversations");
    size_t n = json_array_size(list);
    CLEANUP(freep) json_t **sorted = xcalloc(n, sizeof(*sorted));
    for (size_t i = 0; i < n; i++)
        sorted[i] = json_array_get(list, i);
    if (n) qsort(sorted, n, sizeof(*sorted), by_life);
    printf("  row:generation state    tokens chunks pipeline lane    idle\n");
    for (size_t i = 0; i < n && (int)i < lines; i++)
        printf("%5lld:%-10lld %-7s %7lld %6lld %8lld %4lld %6.1fs\n", json_number(sorted[i], "row"),
               json_number(sorted[i], "generation"), json_text(sorted[i], "state"),
               json_number(sorted[i], "tokens"), json_number(sorted[i], "chunks"),
               json_number(sorted[i], "pipeline"), json_number(sorted[i], "lane"),
               (double)json_number(sorted[i], "idle_ms") / 1000);
    json_decref(all);
}

static int terminal_lines(void)
{
    struct winsize w;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row ? w.ws_row : LINES_PRESET;
}

static void paint(void *arg)
{
    struct ctl *c = arg;
    if (c->json) {
        json_t *o = look_metrics(c), *rows = look_conversations(c);
        json_object_update(o, rows);
        json_decref(rows);
        json_dumpf(o, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(o);
    } else {
        if (top.terminal) printf("\033[H\033[J");
        printf("pool %016llx: chunks of %u cells, poold pid %u%s\n",
               (unsigned long long)c->view.h->pool_id, c->view.h->chunk_cells, c->view.h->poold_pid,
               c->attached ? "" : " (away)");
        paint_cells(c);
        paint_workers(c);
        paint_conversations(c, top.terminal ? terminal_lines() - HEAD_LINES : INT32_MAX);
    }
    if (fflush(stdout) == EOF) ctl_end(c, EXIT_DONE); /* whoever read it is gone */
}

static void on_key(void *arg, uint32_t events)
{
    struct ctl *c = arg;
    char key = 0;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    if (n <= 0 || key == 'q' || key == 'Q' || (events & EPOLLHUP)) ctl_end(c, EXIT_DONE);
}

static void on_signal(void *arg, int signal)
{
    (void)signal;
    ctl_end(arg, EXIT_DONE);
}

static int read_keys(struct ctl *c)
{
    struct loop_source *keys = NULL;
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &top.before) < 0) return 0;
    struct termios raw = top.before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    top.raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    return loop_add_fd(c->loop, STDIN_FILENO, EPOLLIN, on_key, c, &keys);
}

void begin_top(struct ctl *c)
{
    static const int ends[] = {SIGINT, SIGTERM};
    if (top.since_us) return; /* poold is back; the timer runs */
    if (c->once) {
        paint(c);
        ctl_end(c, EXIT_DONE);
        return;
    }
    top.terminal = isatty(STDOUT_FILENO) && !c->json;
    (void)atexit(give_terminal_back);
    if (top.terminal) printf("\033[?25l");
    struct loop_source *timer = NULL, *signals = NULL;
    int r = loop_add_timer(c->loop, paint, c, &timer);
    if (r == 0) r = loop_set_timer(timer, REFRESH_US, REFRESH_US);
    if (r == 0) r = loop_add_signals(c->loop, ends, ARRAY_LEN(ends), on_signal, c, &signals);
    if (r == 0) r = read_keys(c);
    if (r < 0) return ctl_fail(c, EXIT_REFUSED, "%s", strerror(-r));
    paint(c);
}
