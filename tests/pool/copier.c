/* SPDX-License-Identifier: MIT */
/* poolctl as a child of the random test, its files, and its rows. */
#include "copier.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "poold/poolctl_file.h"

enum { UNREACHED = 2, UNKNOWN = 3, LATER = 4 }; /* of poolctl's exit codes */

void copier_init(struct copier *c, struct model *m, const char *program)
{
    *c = (struct copier){.m = m, .program = program};
    (void)snprintf(c->file, sizeof(c->file), "%s/saved", m->world->dir);
    m->copier = c;
}

/* ---- the process ---- */

static void start(struct copier *c, const char *command, const char *what, const char *file)
{
    char conf[96], log[96];
    (void)snprintf(conf, sizeof(conf), "%s/conf", c->m->world->dir);
    (void)snprintf(log, sizeof(log), "%s/log", c->m->world->dir);
    char *arguments[] = {(char *)c->program, "--config",   conf, (char *)command,
                         (char *)what,       (char *)file, NULL};
    c->killed = false;
    c->pid = fork();
    require(c->pid >= 0, "fork: %s", strerror(errno));
    if (c->pid > 0) return;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) _exit(127);
    (void)execv(arguments[0], arguments);
    _exit(127);
}

static bool begins(const struct words *whole, const struct words *part)
{
    return part->n <= whole->n &&
           memcmp(part->token, whole->token, part->n * sizeof(part->token[0])) == 0;
}

/* A row's tokens become more, or others: all that they have been since the save was asked for. */
static void note_source(struct copier *c)
{
    const struct row *r = &c->m->row[c->row];
    if (r->generation != c->generation) return;
    struct words now = {.salt = r->salt, .n = r->n_tokens};
    memcpy(now.token, r->tokens, now.n * sizeof(now.token[0]));
    struct words *last = &c->source[(c->n_sources + SOURCES_MAX - 1) % SOURCES_MAX];
    if (c->n_sources == 0 || !begins(&now, last)) last = &c->source[c->n_sources++ % SOURCES_MAX];
    *last = now;
}

void copier_save(struct copier *c, uint32_t row, uint64_t generation)
{
    char name[40];
    if (c->pid || c->is_new) return;
    c->saves = true;
    c->row = row;
    c->generation = generation;
    c->n_sources = 0;
    c->held_generation = 0;
    note_source(c);
    (void)snprintf(name, sizeof(name), "%u:%llu", row, (unsigned long long)generation);
    start(c, "save", name, c->file);
    c->n_saves++;
}

void copier_restore(struct copier *c)
{
    if (c->pid || c->is_new || c->saved.n == 0) return;
    c->saves = c->restored = false;
    start(c, "restore", c->file, NULL);
    c->n_restores++;
}

void copier_kill(struct copier *c)
{
    if (!c->pid || c->killed) return;
    c->killed = true;
    c->n_killed++;
    (void)kill(c->pid, SIGKILL);
}

void copier_pause(struct copier *c, bool on)
{
    siginfo_t info;
    if (!c->pid) c->is_new = on;
    if (!c->pid || c->killed) return;
    (void)kill(c->pid, on ? SIGSTOP : SIGCONT);
    if (on) (void)waitid(P_PID, (id_t)c->pid, &info, WSTOPPED | WEXITED | WNOWAIT);
}

/* ---- the file ---- */

static bool comes_from_a_source(const struct copier *c, const struct words *w)
{
    for (uint32_t i = 0; i < min_u32(c->n_sources, SOURCES_MAX); i++)
        if (c->source[i].salt == w->salt && begins(&c->source[i], w)) return true;
    return false;
}

/* Tokens of the file, all of whose K/V must be theirs. A layer of each stage bears hashes. */
static void read_file(const struct copier *c, struct words *ret)
{
    static uint8_t data[1 << 20];
    struct saved_header h;
    struct why why;
    const struct head *head = &c->m->head[0];
    FILE *f = fopen(c->file, "re");
    *ret = (struct words){0};
    if (!f) return;
    size_t n = fread(data, 1, sizeof(data), f);
    (void)fclose(f);
    require(saved_from(data, n, n, &why, &h) == 0, "the saved file: %s", why.text);
    require(h.n_cells <= CONTEXT && h.chunk_cells == CHUNK, "the saved file is too long");
    ret->n = h.n_cells;
    ret->salt = h.salt;
    uint64_t off = SAVED_HEADER_BYTES, hash = 0;
    for (uint32_t i = 0; i < saved_n_chunks(&h); i++) {
        uint32_t cells = saved_chunk_cells(&h, i);
        const uint8_t *tokens = data + off + sizeof(struct saved_chunk);
        const uint8_t *kv = tokens + saved_tokens_bytes(cells);
        memcpy(ret->token + (size_t)i * CHUNK, tokens, cells * sizeof(uint32_t));
        for (uint32_t k = 0; k < cells; k++) {
            hash = kv_hash(hash, ret->token[i * CHUNK + k]);
            for (uint32_t s = 0; s < head->n_stages; s++) {
                uint64_t cell;
                memcpy(&cell, kv + s * saved_layer_bytes(&h, cells) + k * sizeof(cell),
                       sizeof(cell));
                require(cell == hash + s, "the saved file: cell %u has foreign K/V in stage %u",
                        i * CHUNK + k, s);
            }
        }
        off += saved_chunk_bytes(&h, i);
    }
}

static bool equal(const struct words *a, const struct words *b)
{
    return a->salt == b->salt && a->n == b->n && begins(a, b);
}

static void ended(struct copier *c, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    c->pid = 0;
    c->is_new = true;
    require((c->killed && WIFSIGNALED(status)) || code == 0 || code == UNREACHED ||
                code == UNKNOWN || code == LATER,
            "poolctl %s ended with status %#x", c->saves ? "save" : "restore", status);
    struct words now;
    read_file(c, &now);
    bool as_before = equal(&now, &c->saved);
    if (c->saves && code == 0) {
        require(comes_from_a_source(c, &now), "what was saved is not of row %u's %u pasts", c->row,
                c->n_sources);
        require(c->held_generation == 0 || equal(&now, &c->held),
                "%u cells were saved of row %u, which the save's row did not have", now.n, c->row);
    } else
        require(as_before || (c->saves && comes_from_a_source(c, &now)), "the target has changed");
    c->saved = now;
}

void copier_look(struct copier *c)
{
    int status;
    if (!c->pid) return;
    if (c->saves) note_source(c);
    if (waitpid(c->pid, &status, WNOHANG) == c->pid) ended(c, status);
}

void copier_fini(struct copier *c)
{
    int status;
    if (!c->pid) return;
    copier_kill(c);
    require(waitpid(c->pid, &status, 0) == c->pid, "waitpid: %s", strerror(errno));
    ended(c, status);
}

/* ---- its rows ---- */

static void read_held(const struct copier *c, uint32_t row, const struct seen *s, struct words *ret)
{
    const struct pool_body *b = &s->body;
    const struct head *h = &c->m->head[0];
    uint64_t hash = 0;
    *ret = (struct words){.salt = b->salt, .n = b->base + b->copy_cells};
    for (uint32_t i = 0; i < ret->n; i++) {
        uint64_t entry = i < b->base ? s->table[i / CHUNK] : b->copy_entry;
        uint32_t chunk = pool_entry_chunk(entry), off = i % CHUNK;
        ret->token[i] = h->tokens->cell[chunk * CHUNK + off];
        hash = kv_hash(hash, ret->token[i]);
        for (uint32_t k = 0; k < h->n_stages; k++)
            require(*head_cell(h, k, chunk, off) == hash + k,
                    "row %u, a save's: cell %u of %u has foreign K/V in stage %u", row, i, ret->n,
                    k);
    }
}

void copier_check_held(struct copier *c, uint32_t row, const struct seen *s)
{
    const struct pool_body *b = &s->body;
    require(c && c->pid && b->state == POOL_CLOSING, "row %u is a tool's, and there is none", row);
    if (!c->saves) {
        require(b->base == 0 && b->copy_cells == 0 && b->keep == c->saved.n &&
                    b->salt == c->saved.salt && b->n_entries == (b->keep + CHUNK - 1) / CHUNK,
                "row %u is a restore's: %u cells of %u, %u entries", row, b->base, b->keep,
                b->n_entries);
        return;
    }
    struct words now;
    read_held(c, row, s, &now);
    require(now.n > 0 && comes_from_a_source(c, &now), "row %u is a save's, and not row %u's", row,
            c->row);
    require(c->held_generation == 0 ||
                (c->held_generation == b->generation && equal(&now, &c->held)),
            "row %u is a save's, and has changed", row);
    c->held_generation = b->generation;
    c->held = now;
}

void copier_learn(struct copier *c, uint32_t row, const struct seen *s)
{
    const struct pool_body *b = &s->body;
    struct row *r = &c->m->row[row];
    require(!c->saves && !c->restored && !r->head && b->state == POOL_IDLE &&
                b->base + b->copy_cells <= c->saved.n,
            "row %u is nobody's: %u cells in state %u", row, b->base, b->state);
    *r = (struct row){.generation = b->generation, .salt = c->saved.salt, .n_tokens = c->saved.n};
    memcpy(r->tokens, c->saved.token, c->saved.n * sizeof(r->tokens[0]));
    c->restored = true;
    c->n_restored++;
}
