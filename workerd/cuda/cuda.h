/* SPDX-License-Identifier: MIT */
#ifndef WORKERD_CUDA_CUDA_H
#define WORKERD_CUDA_CUDA_H
/*
 * What the C files of the CUDA backend share. One backend is one card, one stream, and belongs to
 * the device thread.
 *
 * An operation (operations.c) is an entry of a list; sync launches the list (list.c), as a graph
 * when its entries are those of one that was captured before: what changes from window to window is
 * read from fixed addresses (window.c), not from the entries. K/V is written through to the pool,
 * which is host memory registered with the driver; GPU memory keeps copies of chunks (resident.c).
 */
#include "proto/kv_block.h"
#include "workerd/backend.h"
#include "workerd/cuda/card.h"
#include "workerd/cuda/kernels.h"

enum {
    CUDA_ROWS_GRAPH = 64, /* windows of at most so many rows are launched as graphs: generating */
    CUDA_SPAN_TURNS = 4,  /* launches that spans' attention takes, at most */
    CUDA_SPAN_LEAST = 8,  /* rows of a lane that are worth a span */
    CUDA_PICKS = 64,      /* rows that a list picks, and greedy tokens that it gives, at most */
};

/* The arena is registered in pieces: one call holds a lock of the driver that every process's calls
 * need; 4 GiB take 0.2 s. No copy may cross from one piece into the next. */
#define CUDA_REGISTER_BYTES (UINT64_C(4) << 30)

struct backend_weight {
    enum cuda_pack pack;
    uint32_t type; /* enum ggml_type of a table */
    struct cuda_matrix m;
};

struct backend_buffer {
    struct cuda_rows rows;
    uint32_t n_rows;  /* as of the operations enqueued so far */
    uint32_t n_plain; /* likewise: rows with codes; those behind them, a prompt's, have halves */
    bool quantised, halved;   /* likewise: codes, halves hold */
    bool scaled, floats;      /* codes as of struct cuda_product; float32 values hold, too */
    struct cuda_rows norm_of; /* when they don't: what they are made of */
    const float *norm_w;
};

/* A chunk's place in GPU memory. Holds cells [0, filled) of {chunk, generation}. */
struct cuda_slot {
    uint32_t chunk, generation, filled; /* chunk 0: free */
    bool used;                          /* since the clock's hand went by */
    uint64_t window;                    /* the last that read it */
};

struct cuda_resident {
    uint8_t *memory; /* [layer][slot][chunk bytes], on the device */
    uint32_t n_slots, hand;
    uint64_t full_at; /* the last window that found no place */
    struct cuda_slot *slot;
    int32_t *slot_of; /* [chunk] */
};

/* Chunks without a place that several rows of a lane read: they come into GPU memory a layer at a
 * time, while the one before is computed. */
struct cuda_pass {
    uint32_t chunk, cells; /* cells: of the chunk, that windows before have filled */
};
struct cuda_passing {
    uint8_t *memory;        /* [even or odd layer][place][chunk bytes], on the device */
    uint32_t n_places, n;   /* n: taken by this window */
    struct cuda_pass *pass; /* [n] */
    cudaStream_t stream;
    cudaEvent_t there[2], left; /* a layer's chunks have come; the layer before is not read more */
};

/* Of one window, until it is done: what is copied to the device when its turn comes, and what sync
 * gives out. All pinned. */
struct cuda_flight {
    struct cuda_row *rows;
    struct cuda_entry *tables;
    uint32_t *picks;
    struct cuda_span *spans;
    uint32_t *listed;
    uint32_t *late; /* [row]: tokens of lanes that are late */
    struct cuda_ways *ways;
    float *activations;          /* [row][n_embd]: through the host, either way */
    struct cuda_choice *choices; /* the words follow them, as on the device */
    uint32_t *tokens;            /* [CUDA_PICKS]: answers of its sample, with */
    struct link_probs *probs;
    cudaEvent_t done;
    struct sampler_row *sampled;  /* [n_sampled] */
    uint32_t n_sampled, n_placed; /* n_placed: lanes whose cells' places were taken */
    const struct window *window;
    const float *load_from; /* where load finds its rows, and store's go; NULL: nowhere */
    float *store_to;
    uint64_t load_bytes, store_bytes;
    /* Its own first failure since begin, of CUDA, and of what isn't CUDA's: negative errno. Then
     * nothing more of it is launched. */
    cudaError_t failed;
    int refused;
};

/* Of a window, as far as it decides which launches there are and with what arguments. */
struct cuda_shape {
    uint32_t n_rows;
    uint32_t n_plain;  /* of them: those before what halves.cu multiplies */
    bool lone_rows;    /* each lane has one */
    uint32_t n_listed; /* rows that are in no span */
    uint32_t longest;  /* cells that the longest of these reads */
    uint32_t n_spans;
    uint32_t longest_span;   /* cells that the longest span reads */
    uint32_t span_stretches; /* that this is */
    uint32_t span_each;      /* of them a block of threads attends to so many; 0: to all */
    uint32_t span_turn;      /* spans of one launch */
};

struct cuda_copy { /* from device to device */
    void *to;
    const void *from;
    uint64_t bytes;
};

struct cuda_list;
struct cuda_upload;

struct backend {
    struct backend_want want;
    int device, capability; /* capability: 90 for 9.0 */
    char name[64];
    cudaStream_t stream;

    struct cuda_memory *memory; /* everything allocated on the device, and pinned */
    struct cuda_budget budget;
    uint64_t wanted;            /* bytes of what found no memory last */
    struct cuda_upload *upload; /* while weights come */

    /* Two windows on their way to the device: one is being computed while the next is enqueued
     * behind it. */
    struct cuda_flight flight[2];
    struct cuda_flight *now; /* of the last begin; always the first, when none flies */
    struct cuda_shape shape; /* likewise */
    uint32_t n_flying;       /* started, not waited for */
    bool prepared;           /* now is, and is not started yet */
    uint64_t window;         /* its number */
    /* The window at the fixed addresses that the kernels read. */
    struct cuda_row *rows;
    struct cuda_entry *tables;
    uint32_t *picks;
    struct cuda_span *spans; /* of windows that are no graph: rows of a lane together */
    uint32_t *listed;        /* the rows beside them */
    double *rope_freq;
    float *rope, *host_row;
    uint32_t row_values; /* room of host_row */
    bool float_matrices; /* some weights are multiplied as floats */

    /* The arena. */
    struct pool_arena *arena;
    uint64_t arena_bytes, pool_id;
    uint8_t *registered;
    bool pinned; /* it is CUDA's own memory and needed no registering */
    uint32_t first_layer, table_room, chunk_shift, block_shift;
    uint64_t chunk_bytes;
    struct kv_block block; /* K by cell */
    float *fresh;          /* of struct cuda_kv */
    uint8_t **run;         /* [layer] */
    struct cuda_resident resident;
    struct cuda_passing passing;

    struct cuda_product_ways products;
    enum cuda_tiles tiles;
    uint32_t multiprocessors;
    bool halves;               /* prompts' rows are multiplied by halves.cu */
    bool flash, flash_tiles;   /* attention by tensor cores; also of spans */
    float scale;               /* of scores */
    float *part_ml, *part_o;   /* partial sums of attention */
    uint64_t part_rows_splits; /* rows x splits that fit */
    struct cuda_list *list;
    struct cuda_sample choices; /* the fixed addresses that the list's sample reads and writes */
    uint32_t max_words;         /* behind the choices, on the device and in a flight */

    /* Activations between cards (inbox.c). The peer's memory is another process's. */
    uint8_t *inbox, *peer; /* NULL: none */
    uint64_t inbox_slot_bytes, inbox_key, peer_off, peer_slot_bytes;
    struct cuda_ways *ways; /* of the window: its fixed address */
    /* Windows that are no graph have copies before and behind the list; to NULL: none. */
    struct cuda_copy take_late, give_late;
};

/* memory.c: NULL when there is none; freed with the backend. Device memory is zeroed. */
struct cuda_memory *cuda_memory_new(void);
void cuda_memory_free(struct cuda_memory *m);
void *cuda_get(struct backend *b, uint64_t bytes);
void *cuda_get_pinned(struct backend *b, uint64_t bytes);
void *cuda_get_host(struct backend *b, size_t bytes);
int cuda_weight(struct backend *b, enum weight_use use, const struct backend_tensor *t,
                struct why *why, struct backend_weight **ret);
/* The sentence for what finds none; -ENOMEM. */
int cuda_refuse_memory(const struct backend *b, const char *what, uint64_t bytes, struct why *why);
bool cuda_multiplies(uint32_t type);

/* upload.c: -ENOMEM, -EIO of CUDA, or what reading the file said. */
int cuda_upload_plain(struct backend *b, const struct backend_tensor *t, uint64_t bytes,
                      uint8_t *to);
int cuda_upload_matrix(struct backend *b, const struct backend_tensor *t,
                       const struct backend_weight *w);
void cuda_upload_free(struct backend *b);

/* window.c */
int cuda_window_new(struct backend *b);
void cuda_window_free(struct backend *b);
int cuda_use_arena(struct backend *b, struct pool_arena *arena, uint32_t first_layer,
                   struct why *why);
void cuda_arena_release(struct backend *b);
void cuda_copy_cells(struct backend *b, uint32_t from_chunk, uint32_t to_chunk, uint32_t n_cells);
void cuda_begin(struct backend *b, const struct window *w);
/* Parts that a block of threads has of rows that are no spans: 1 or CUDA_FLASH_STRETCH. */
uint32_t cuda_together(const struct backend *b, uint32_t n_rows, uint32_t n_splits);
/* When a window is launched: what it had to wait for goes where its kernels read it. */
void cuda_window_late(struct backend *b);
/* It is never computed: what was said of its cells. */
void cuda_window_undo(struct backend *b);
struct cuda_kv cuda_kv_of(const struct backend *b, uint32_t layer);

/* choices.c: what sample asks of the device, and its answers. up: true if no more is asked than the
 * largest logit of each row. */
int cuda_choices_new(struct backend *b);
bool cuda_choices_up(struct backend *b, struct sampler_row *rows, uint32_t n);
void cuda_choices_read(const struct cuda_flight *f);

/* inbox.c: what backend.h says, and copies that are no nodes of a graph. */
void cuda_inbox(struct backend *b, uint32_t n_slots, struct link_inbox *ret);
int cuda_peer_open(struct backend *b, const struct link_inbox *peer, struct why *why);
void cuda_peer_close(struct backend *b);
void cuda_take(struct backend *b, struct backend_buffer *x, uint32_t slot);
void cuda_give(struct backend *b, uint32_t slot, const struct backend_buffer *x);
void cuda_copy_launch(struct backend *b, struct cuda_copy *c);

/* resident.c */
int cuda_resident_new(struct backend *b, struct why *why);
void cuda_resident_free(struct backend *b);
/* The place of a chunk whose first `before` cells a window reads and whose cells up to `after` are
 * filled when it ends; CUDA_NOT_RESIDENT when there is none. */
int32_t cuda_resident_take(struct backend *b, uint64_t entry, uint32_t before, uint32_t after);
/* Of this chunk at most so many cells are what the pool has. */
void cuda_resident_cut(struct backend *b, uint32_t chunk, uint32_t cells);
/* Cells from a chunk's first on, maybe of its neighbours too, from the pool to the device, of one
 * layer, in whole blocks. */
struct cuda_fetch {
    uint32_t layer, chunk, cells;
    uint8_t *to;
};
void cuda_resident_copy(struct backend *b, cudaStream_t s, const struct cuda_fetch *f);

/* passing.c. The room for n chunks at once: bytes that it takes, 0 when there is no memory. */
int cuda_passing_open(struct backend *b);
uint64_t cuda_passing_new(struct backend *b, uint32_t n);
void cuda_passing_free(struct backend *b);
void cuda_passing_close(struct backend *b);
/* A chunk's place for the window; CUDA_NOT_RESIDENT when there is none. */
int32_t cuda_passing_take(struct backend *b, uint32_t chunk, uint32_t cells);
/* Before the first operation of a layer that reads or writes K and V. */
void cuda_passing_layer(struct backend *b, uint32_t layer);
uint8_t *cuda_passing_of(const struct backend *b, uint32_t layer);

/* list.c: the list, and what backend.h says of launching it. */
struct cuda_list *cuda_list_new(uint32_t max_ops);
void cuda_list_free(struct cuda_list *l);
void cuda_list_clear(struct cuda_list *l);
void cuda_prepare(struct backend *b);
void cuda_drop(struct backend *b);
int cuda_launch(struct backend *b);
bool cuda_done(struct backend *b);
int cuda_sync(struct backend *b);

/* operations.c: those of backend.h. */
void cuda_turn_add(struct backend *b); /* the window's positions, before anything else */
void cuda_carry_add(struct backend *b, const struct cuda_rows *x, bool out);
void cuda_written(struct backend_buffer *x, uint32_t n_rows, uint32_t n_plain);
void cuda_embed(struct backend *b, struct backend_buffer *x, const struct backend_weight *table);
void cuda_load(struct backend *b, struct backend_buffer *x, const float *host);
void cuda_store(struct backend *b, float *host, const struct backend_buffer *x);
void cuda_rms_norm(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
                   const struct backend_weight *w);
void cuda_qkv(struct backend *b, struct backend_buffer *q, struct backend_buffer *x,
              struct backend_weight *const w[3], uint32_t layer);
void cuda_attend(struct backend *b, struct backend_buffer *y, const struct backend_buffer *q,
                 uint32_t layer);
void cuda_project(struct backend *b, struct backend_buffer *x, struct backend_buffer *y,
                  const struct backend_weight *w);
void cuda_gate_up(struct backend *b, struct backend_buffer *h, struct backend_buffer *x,
                  const struct backend_weight *gate, const struct backend_weight *up);
void cuda_pick(struct backend *b, struct backend_buffer *y, const struct backend_buffer *x,
               const uint32_t *rows, uint32_t n);
void cuda_matmul(struct backend *b, struct backend_buffer *y, struct backend_buffer *x,
                 const struct backend_weight *w);
void cuda_sample(struct backend *b, const struct backend_buffer *x, struct sampler_row *rows);

/* Cells whose attention is summed by itself. */
static inline uint32_t cuda_part_cells(const struct backend *b)
{
    return b->flash ? CUDA_FLASH_CELLS : CUDA_SPLIT_CELLS;
}

/* Keeps a window's first failure: that of the last begin is what calls are made for until the next.
 * What the card itself does wrong is told to every call from then on, so to the windows on both
 * sides as well, and ends the process. True when there is none. */
static inline bool cuda_flight_ok(struct cuda_flight *f, cudaError_t e)
{
    if (f->failed == cudaSuccess) f->failed = e;
    return e == cudaSuccess;
}
static inline bool cuda_ok(struct backend *b, cudaError_t e) { return cuda_flight_ok(b->now, e); }

static inline void cuda_refuse(struct backend *b, int error)
{
    if (b->now->refused == 0) b->now->refused = error;
}

/* Whether more of the window may be launched. */
static inline bool cuda_is_well(const struct backend *b)
{
    return b->now->refused == 0 && b->now->failed == cudaSuccess;
}

#endif
