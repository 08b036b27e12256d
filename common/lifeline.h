/* SPDX-License-Identifier: MIT */
#ifndef COMMON_LIFELINE_H
#define COMMON_LIFELINE_H
/*
 * The packets of a lifeline (AF_UNIX SOCK_SEQPACKET at RUN_DIR/lifeline) and how descriptors travel
 * with them. Fixed structs: both ends are of one version, or the first packet says so.
 */
#include "common/base.h"
#include "proto/link_shm.h"

enum {
    LIFELINE_VERSION = 3,
    LIFELINE_FDS_MAX = 4,
};
#define LIFELINE_MAGIC UINT64_C(0x3166694c434e5443)

/* An arena that is CUDA memory (cuda_host.h), as who has it names it: nothing else says what it is
 * before it is mapped. */
struct lifeline_arena {
    uint64_t pool_id;
    uint64_t bytes; /* 0: none */
    uint32_t stage, first_layer, n_layers;
    uint32_t pad_;
};

/* The first packet of a process, with a pidfd of itself, and with the descriptor of its arena when
 * that has bytes: a poold that was restarted has nothing else to find it by. */
struct lifeline_hello {
    uint64_t magic;
    uint32_t version;
    uint32_t role; /* enum pool_role */
    uint64_t incarnation;
    struct lifeline_arena arena;
};

enum lifeline_kind {
    LIFELINE_WELCOME = 1, /* poold's first packet */
    LIFELINE_REFUSED = 2, /* text says why; poold closes */
    LIFELINE_POOL = 3,    /* fds: control (read-only), tokens, then of a worker: page, arena.
                             Before Attached. tokens is writable for stage 0 alone. */
    LIFELINE_LINK = 4,    /* fds: the link of {pipeline, life}, an eventfd that the last stage rings
                             for the head with each window */
    LIFELINE_PAGE = 5,    /* fds: the page of {pipeline, life = stage}, read-only; to gateways and
                             tools, whenever a worker takes its place */
    LIFELINE_ARENA = 6,   /* fds: the arena of stage `life`, and the tokens; to a tool that saves
                             (read-only) or restores, one packet a stage, before the Row */
};

struct lifeline_files { /* poold's packets */
    uint64_t magic;
    uint32_t version;
    uint32_t kind;        /* enum lifeline_kind */
    uint64_t incarnation; /* WELCOME: poold's */
    uint64_t pool_id;
    uint32_t pipeline, life;
    uint64_t arena_bytes; /* POOL, ARENA: 0: the arena is a file; else CUDA memory of so many */
    char text[256];       /* REFUSED */
};

/* One packet with descriptors. -EAGAIN when it would block. */
int lifeline_send(int sock, const void *packet, size_t bytes, const int *fds, uint32_t n_fds);
/* Reads one packet of exactly bytes into packet; fds received go to fds[LIFELINE_FDS_MAX] (the
 * caller's), *ret_n_fds tells how many. 0 at end of file is -ECONNRESET; another size is -EPROTO.
 */
int lifeline_receive(int sock, void *packet, size_t bytes, int *fds, uint32_t *ret_n_fds);

#endif
