/* SPDX-License-Identifier: MIT */
/*
 * The CUDA backend: opening and closing a card, buffers, the table of operations. Device thread
 * only. A failure of CUDA is the window's end and with it the worker's: what stays usable after one
 * isn't asked.
 */
#include "workerd/cuda/cuda.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "workerd/cuda/backend_cuda.h"

enum {
    HEAD_DIM_UNIT = 16, /* values of a head are read 8 at once, and turn in pairs */
    /* Entries of a list: a layer has eight, twelve when its weights are of mixed types, each twice
     * when there are rows of both kinds, one more for chunks that pass, and the turns that
     * attention takes in a large window. */
    OPS_A_LAYER = 25,
    OPS_BESIDE = 16,
    PARTS_BYTES = 256 << 20, /* partial sums of attention; at least one row's */
};

static int check_want(const struct backend_want *w, struct why *why)
{
    if (w->head_dim == 0 || w->head_dim % HEAD_DIM_UNIT || w->head_dim > CUDA_HEAD_DIM_MAX)
        return why_set(why, -ENOTSUP, "heads of %u values: must be a multiple of %d up to %d",
                       w->head_dim, HEAD_DIM_UNIT, CUDA_HEAD_DIM_MAX);
    if (w->rope_dims % HEAD_DIM_UNIT || w->rope_dims > w->head_dim)
        return why_set(why, -ENOTSUP, "rope over %u of %u dimensions: must be a multiple of %d",
                       w->rope_dims, w->head_dim, HEAD_DIM_UNIT);
    if (w->n_kv_heads == 0 || w->n_heads % w->n_kv_heads)
        return why_set(why, -ENOTSUP, "%u query heads over %u K/V heads", w->n_heads,
                       w->n_kv_heads);
    if (w->block_cells < CUDA_UNIT_CELLS || w->block_cells & (w->block_cells - 1))
        return why_set(why, -EINVAL, "blocks of %u cells", w->block_cells);
    return 0;
}

int cuda_device_of(const char *name, int *ret)
{
    char *end;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9') return -EINVAL;
    unsigned long v = strtoul(name + 5, &end, 10);
    if (*end || v > INT16_MAX) return -EINVAL;
    *ret = (int)v;
    return 0;
}

/* CUDA says of a driver that is not there that it is too old. */
static int refuse_device(const char *what, cudaError_t e, struct why *why)
{
    int driver = 0, runtime = 0;
    if (e != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess ||
        cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        return why_set(why, -ENODEV, "%s can't be used: %s", what, cudaGetErrorString(e));
    return cuda_driver_refuse((uint32_t)driver, (uint32_t)runtime, why);
}

int cuda_free_bytes(const char *name, struct why *why, uint64_t *ret)
{
    int device;
    size_t free_bytes = 0, all = 0;
    if (cuda_device_of(name, &device) < 0)
        return why_set(why, -EINVAL, "'%s' is not a device: cpu or cuda:N", name);
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaMemGetInfo(&free_bytes, &all);
    if (e == cudaSuccess) e = cudaDeviceReset();
    if (e != cudaSuccess) return refuse_device(name, e, why);
    *ret = free_bytes;
    return 0;
}

static int open_device(struct backend *b, struct why *why)
{
    struct cudaDeviceProp p;
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) return refuse_device(b->want.device, e, why);
    if (cuda_device_of(b->want.device, &b->device) < 0 || b->device >= n)
        return why_set(why, -ENODEV, "there is no device %s; this machine has cuda:0 to cuda:%d",
                       b->want.device, n - 1);
    e = cudaSetDevice(b->device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, b->device);
    if (e != cudaSuccess)
        return why_set(why, -ENODEV, "%s can't be opened: %s", b->want.device,
                       cudaGetErrorString(e));
    b->capability = 10 * p.major + p.minor;
    b->multiprocessors = (uint32_t)p.multiProcessorCount;
    struct cuda_card card = {b->want.device, p.name, (uint32_t)b->capability,
                             p.canUseHostPointerForRegisteredMem != 0};
    int r = cuda_card_check(&card, why);
    if (r < 0) return r;
    (void)snprintf(b->name, sizeof(b->name), "cuda:%d %.40s, sm_%d", b->device, p.name,
                   b->capability);
    e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    uint32_t dim_max = 0;
    if (e == cudaSuccess) e = cuda_product_prepare(&b->products);
    if (e == cudaSuccess) e = cuda_flash_prepare(&dim_max);
    if (e == cudaSuccess) e = cuda_tiles_prepare(&b->tiles);
    /* The float32 reference keeps to float32 throughout. */
    b->halves = !b->want.float32 && b->products.halves;
    b->flash = !b->want.float32 && b->block.k_bits <= 16 && b->want.head_dim <= dim_max;
    b->flash_tiles = b->flash && b->want.head_dim <= CUDA_FLASH_DIM &&
                     b->want.n_heads / b->want.n_kv_heads <= CUDA_FLASH_ROWS;
    return e == cudaSuccess ? 0
                            : why_set(why, -EIO, "%s: %s", b->want.device, cudaGetErrorString(e));
}

static void cuda_close(struct backend *b)
{
    if (!b) return;
    if (b->stream) (void)cudaStreamSynchronize(b->stream);
    cuda_list_free(b->list);
    cuda_resident_free(b);
    cuda_passing_close(b);
    cuda_peer_close(b);
    cuda_arena_release(b);
    cuda_upload_free(b);
    cuda_window_free(b);
    cuda_memory_free(b->memory);
    if (b->stream) (void)cudaStreamDestroy(b->stream);
    free(b->run);
    free(b);
}
static inline void cuda_closep(struct backend **b) { cuda_close(*b); }

static int parts_new(struct backend *b)
{
    const struct backend_want *w = &b->want;
    uint64_t longest = w->context_tokens + (uint64_t)w->max_rows, splits = 1;
    while (splits * cuda_part_cells(b) < longest)
        splits *= 2;
    uint64_t one = (uint64_t)w->n_heads * (w->head_dim + 2) * sizeof(float);
    uint64_t n = min_u64(PARTS_BYTES / one, splits * w->max_rows);
    n = max_u64(n, splits);
    b->part_rows_splits = n;
    b->part_ml = cuda_get(b, n * w->n_heads * 2 * sizeof(float));
    b->part_o = cuda_get(b, n * w->n_heads * w->head_dim * sizeof(float));
    uint32_t turns = (uint32_t)(splits * w->max_rows / n) + 1;
    b->list = cuda_list_new(w->n_layers * (OPS_A_LAYER + CUDA_SPAN_TURNS + turns) + OPS_BESIDE);
    return b->part_ml && b->part_o ? 0 : -ENOMEM;
}

static int refuse_windows(const struct backend *b, uint32_t rows, int r, struct why *why)
{
    char what[96];
    (void)snprintf(what, sizeof(what), "%s: windows of %u rows", b->name, rows);
    if (r == -ENOMEM) return cuda_refuse_memory(b, what, b->wanted, why);
    return why_set(why, r, "%s: %s", what, cudaGetErrorString(cudaGetLastError()));
}

static int cuda_open(const struct backend_want *want, struct why *why, struct backend **ret)
{
    int r = check_want(want, why);
    if (r < 0) return r;
    CLEANUP(cuda_closep) struct backend *b = xnew(struct backend);
    b->want = *want;
    b->scale = (float)(1.0 / sqrt(want->head_dim));
    b->block =
        kv_block_of(want->kv, want->n_kv_heads, want->head_dim, want->block_cells, KV_BY_CELL);
    b->memory = cuda_memory_new();
    b->run = xcalloc(want->n_layers, sizeof(*b->run));
    r = open_device(b, why);
    if (r < 0) return r;
    b->budget.limit = want->memory_limit;
    r = cuda_passing_open(b);
    if (r == 0) r = cuda_window_new(b);
    if (r == 0) r = cuda_choices_new(b);
    if (r == 0) r = parts_new(b);
    if (r < 0) return refuse_windows(b, want->max_rows, r, why);
    *ret = TAKE(b);
    return 0;
}

/* Prompts' rows by halves (halves.cu): another arithmetic, whose K/V no other device can go on
 * with. What stories may hold equal follows from its name: KINDS_DIFFER in tests/integration. */
static const char *cuda_arithmetic(const struct backend *b)
{
    return b->halves ? "cuda-5" : "cuda-4";
}
static const char *cuda_device(const struct backend *b) { return b->name; }
static uint64_t cuda_weight_bytes(const struct backend *b) { return b->budget.weights; }

/* What products take of x's rows (struct cuda_rows). */
static int factors_new(struct backend *b, struct cuda_rows *x, uint32_t max_rows)
{
    uint64_t eights = round_up_u64(max_rows, CUDA_X_WHOLE) / CUDA_X_ROWS;
    x->q = cuda_get(b, eights * (x->k_pad / CUDA_PIECE) * CUDA_X_BYTES);
    x->squares = cuda_get(b, (uint64_t)max_rows * (x->k_pad / CUDA_BLOCK) * sizeof(float));
    if (!x->q || !x->squares) return -ENOMEM;
    if (!b->halves) return 0;
    uint64_t whole = round_up_u64(max_rows, CUDA_HALVES_ROWS);
    x->h = cuda_get(b, whole * x->k_pad * sizeof(uint16_t));
    return x->h ? 0 : -ENOMEM;
}

static int buffer_new(struct backend *b, const struct backend_buffer_want *w,
                      struct backend_buffer **ret)
{
    struct backend_buffer *x = cuda_get_host(b, sizeof(*x));
    x->rows.width = w->width;
    x->rows.k_pad = (uint32_t)round_up_u64(w->width, CUDA_PIECE);
    x->rows.f = cuda_get(b, (uint64_t)w->max_rows * w->width * sizeof(float));
    if (!x->rows.f) return -ENOMEM;
    int r = w->multiplied ? factors_new(b, &x->rows, w->max_rows) : 0;
    if (r < 0) return r;
    if (w->width > b->row_values) {
        b->host_row = cuda_get_pinned(b, w->width * sizeof(float));
        b->row_values = b->host_row ? w->width : 0;
        if (!b->host_row) return -ENOMEM;
    }
    *ret = x;
    return 0;
}

static int cuda_buffer(struct backend *b, const struct backend_buffer_want *want, struct why *why,
                       struct backend_buffer **ret)
{
    int r = buffer_new(b, want, ret);
    return r < 0 ? refuse_windows(b, want->max_rows, r, why) : 0;
}

static const float *cuda_row(struct backend *b, const struct backend_buffer *x, uint32_t row)
{
    cudaError_t e =
        cudaMemcpyAsync(b->host_row, x->rows.f + (size_t)row * x->rows.width,
                        x->rows.width * sizeof(float), cudaMemcpyDeviceToHost, b->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(b->stream);
    (void)cuda_ok(b, e); /* the next sync says it; what is read until then is not used */
    return b->host_row;
}

const struct backend_ops cuda_backend = {
    .name = "cuda",
    .arithmetic = cuda_arithmetic,
    .head_rows = CUDA_PICKS,
    .open = cuda_open,
    .close = cuda_close,
    .device = cuda_device,
    .multiplies = cuda_multiplies,
    .weight = cuda_weight,
    .weight_bytes = cuda_weight_bytes,
    .buffer = cuda_buffer,
    .use_arena = cuda_use_arena,
    .copy_cells = cuda_copy_cells,
    .begin = cuda_begin,
    .embed = cuda_embed,
    .load = cuda_load,
    .store = cuda_store,
    .inbox = cuda_inbox,
    .peer_open = cuda_peer_open,
    .peer_close = cuda_peer_close,
    .take = cuda_take,
    .give = cuda_give,
    .rms_norm = cuda_rms_norm,
    .qkv = cuda_qkv,
    .attend = cuda_attend,
    .project = cuda_project,
    .gate_up = cuda_gate_up,
    .pick = cuda_pick,
    .matmul = cuda_matmul,
    .sample = cuda_sample,
    .prepare = cuda_prepare,
    .drop = cuda_drop,
    .launch = cuda_launch,
    .done = cuda_done,
    .sync = cuda_sync,
    .row = cuda_row,
};
