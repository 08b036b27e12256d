/* SPDX-License-Identifier: MIT */
/*
 * Every key of cistern.conf: one line each, an array a section. The parser, --help, the man page's
 * table and the "nearest key" of an error all come from here.
 */
#include "common/config.h"
#include "common/log.h"
#include "proto/pool_shm.h"

#define U32(s, f, lo, hi, preset, help)                                                            \
    {                                                                                              \
#s, #f, CONFIG_U32, offsetof(struct config, s.f), lo, hi, NULL, NULL, preset, help         \
    }
#define U64(s, f, lo, hi, preset, help)                                                            \
    {                                                                                              \
#s, #f, CONFIG_U64, offsetof(struct config, s.f), lo, hi, NULL, NULL, preset, help         \
    }
#define FLAG(s, f, preset, help)                                                                   \
    {                                                                                              \
#s, #f, CONFIG_BOOL, offsetof(struct config, s.f), 0, 0, NULL, NULL, preset, help          \
    }
#define TEXT(s, f, preset, help)                                                                   \
    {                                                                                              \
#s, #f, CONFIG_STRING, offsetof(struct config, s.f), 0, 0, NULL, NULL, preset, help        \
    }
#define CHOICE(s, f, choices, values, preset, help)                                                \
    {                                                                                              \
#s, #f, CONFIG_CHOICE, offsetof(struct config, s.f), 0, 0, choices, values, preset, help   \
    }

static const uint32_t levels[] = {LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG};
static const uint32_t memories[] = {POOL_MEMORY_SHM, POOL_MEMORY_CUDA};
static const uint32_t kv_formats[] = {POOL_KV_F32, POOL_KV_F16, POOL_KV_INT8, POOL_KV_K8V4,
                                      POOL_KV_Q4};

const struct config_key config_keys[] = {
    TEXT(run, dir, "/tmp/cistern", "Directory of the sockets; made with mode 0700."),
    CHOICE(run, log_level, "error|warn|info|debug", levels, "info", "What is logged to stderr."),

    TEXT(model, path, "", "The GGUF file; the same for all programs."),
    TEXT(model, name, "", "Name that clients see; empty: the file's own."),
    U32(model, context, 0, 1 << 24, "0",
        "Tokens of the longest conversation; 0: what the model was trained for."),

    TEXT(pool, dir, "/dev/shm/cistern", "Directory of the memory files; on tmpfs."),
    U64(pool, cells, 0, UINT32_MAX - (1 << 16), "65536",
        "Cells of the pool, in tokens, for all conversations together, always in host memory; more "
        "than model.context. 0: no pool, each lane has one full context of its own, and nothing is "
        "shared or moved."),
    U32(pool, pipelines, 1, POOL_PIPELINES_MAX, "1",
        "With pool.cells = 0: pipelines whose lanes have one."),
    U32(pool, chunk, 16, 1 << 16, "256", "Cells of a chunk; a power of two."),
    U32(pool, grow, 1, 1024, "1", "Chunks that a conversation asks for at once."),
    U32(pool, conversations, 1, 1 << 20, "4096", "Conversations remembered at most."),
    CHOICE(pool, kv, "f32|f16|int8|k8v4|q4", kv_formats, "f16",
           "Format of K and V; k8v4: keys as int8, values in 4 bits."),
    CHOICE(pool, memory, "shm|cuda", memories, "shm",
           "Memory of the arenas: shm, files in pool.dir that outlive all programs; cuda, host "
           "memory that CUDA's driver pins, which ends with the last program that has it."),
    CHOICE(pool, lock, "auto|yes|no", NULL, "auto",
           "Lock the memory: yes, no, or when the limit allows."),
    CHOICE(pool, admission, "grow|full", NULL, "grow",
           "What an admitted request reserves: its prompt and a growth unit, or all it may use."),
    U32(pool, default_tokens, 1, 1 << 24, "1024",
        "Tokens of an answer without max_tokens that admission = full reserves."),
    CHOICE(pool, when_dry, "end|wait", NULL, "end",
           "Without room: end refuses new requests and cuts answers; wait lets the younger wait."),
    U32(pool, threads, 0, 256, "0", "Threads that prefault the memory; 0: all cores."),
    U32(pool, attach_ms, 100, 600000, "5000",
        "Milliseconds that processes have to attach again after a restart of poold."),

    U32(worker, stages, 1, POOL_STAGES_MAX, "1", "Stages of the pipeline."),
    TEXT(worker, layers, "auto",
         "Layers of each stage, \"0-14,15-29\"; auto: an even split; free: by weights and by what "
         "is free on the devices at the first start, kept in run.dir/split-N."),
    U32(worker, threads, 0, 256, "0", "Compute threads of a CPU stage; 0: all cores."),
    TEXT(worker, cpus, "",
         "Cores of a CPU stage, \"0-3,8\", its own by --set; empty: no pinning. With any, who "
         "waits for another stage spins for a moment; a GPU's thread does so always."),
    U32(worker, lanes, 1, 64, "8", "Conversations computed at the same time."),
    U32(worker, piece, 0, 4096, "0",
        "Prompt tokens of a window at most; 0: 512 on a GPU, 256 on a CPU."),
    U32(worker, prompt_share, 1, 100, "100",
        "Percent of the time that prompts may take while others are answered; 100: no limit but "
        "worker.piece."),
    CHOICE(worker, precision, "int8|float32", NULL, "int8",
           "Activations of the matrix products; float32 is the slow reference."),
    CHOICE(worker, variant, "auto|avx512|avx2|plain", NULL, "auto",
           "CPU instructions of the kernels."),
    TEXT(worker, device, "cpu",
         "What computes: cpu or cuda:N, one for all stages, or one for each: \"cuda:0,cuda:1\"."),
    CHOICE(worker, peer, "auto|off|on", NULL, "auto",
           "Activations go straight into the next stage's GPU: where they can, never, or always; "
           "who cannot then ends."),
    U64(worker, memory_limit, 0, UINT64_C(1) << 40, "0",
        "Bytes of a GPU's memory that a worker uses at most, as if the card had no more; K and V "
        "without a place there are read from the pool. With worker.layers = free the same for all "
        "stages. 0: what is free."),
    U64(worker, kv_resident, 0, UINT32_MAX, "4294967295",
        "Cells whose K and V a GPU keeps in its own memory too, at most; the rest is read from the "
        "pool. The preset: as many as there is room for."),
    FLAG(worker, feed, "yes",
         "Windows begin with tokens that the one before samples, without the head in between."),
    FLAG(worker, exact_prefix, "no",
         "A prompt goes on only from K and V that were computed as a prompt's, not from what was "
         "generated: where those two differ (ARCHITECTURE.md, Exactness) cached then equals "
         "computed, and a conversation's next turn reads its last answer again."),
    U32(worker, stuck_ms, 100, 3600000, "10000",
        "Milliseconds of silence, or of windows in flight and no progress, after which a serving "
        "worker is killed."),
    U32(worker, start_ms, 1000, 86400000, "600000",
        "Milliseconds of silence after which a starting worker is killed."),
    TEXT(worker, trace, "", "Debug: a file that gets a hash of each row of logits."),
    FLAG(worker, trace_all, "no", "Debug: logits of rows that are not sampled, too."),

    TEXT(gateway, listen, "127.0.0.1", "Address to listen at."),
    U32(gateway, port, 0, 65535, "8080", "Port to listen at; 0: any free one."),
    U32(gateway, queue_wait_ms, 0, 3600000, "60000",
        "Milliseconds that a request waits for room, with pool.when_dry = wait."),
    U32(gateway, queue, 0, 65536, "128", "Requests that wait for a lane before 503 queue_full."),
    U64(gateway, body_bytes, 1024, 1 << 30, "33554432", "Bytes of a request's body at most."),
    U32(gateway, connections, 1, 65536, "4096", "Connections at most."),
    U32(gateway, slow_ms, 100, 3600000, "30000", "Milliseconds that a request has to come in."),
    U32(gateway, ping_ms, 100, 600000, "10000",
        "Milliseconds of silence after which a stream gets a comment, a ping or an event."),
    U32(gateway, default_tokens, 0, 1 << 24, "0",
        "Tokens of an answer without max_tokens; 0: up to the context."),
    U64(gateway, out_bytes, 4096, 1 << 30, "1048576",
        "Unsent bytes of one stream before its reader counts as gone."),
    U32(gateway, resume_ms, 0, 3600000, "60000",
        "Milliseconds that a request waits for a worker after its own died; its K/V is kept as "
        "long, and a minute at least."),
    TEXT(gateway, hosts, "",
         "Names besides localhost and gateway.listen that the Host header may bear, by commas; *: "
         "any."),
    TEXT(gateway, keys, "", "Keys that clients must show, by commas; see keys_file."),
    TEXT(gateway, keys_file, "", "A file with one key a line, which only its owner may read."),
    U32(gateway, key_requests, 0, 65536, "0", "Generations of one key at a time; 0: any number."),
    U32(gateway, key_queue, 0, 65536, "0",
        "Generations of one key that wait for a lane before 429; 0: any number."),
    CHOICE(gateway, share_prefixes, "all|key", NULL, "all",
           "Whose cached prompts a request may go on from: everybody's, or its own key's."),
    TEXT(gateway, cors_origins, "",
         "Origins of pages in browsers that may ask, by commas; *: any; empty: none."),
    FLAG(gateway, strict_model, "no",
         "Refuse requests that name another model than the one served."),
    TEXT(
        gateway, slot_dir, "",
        "Folder that POST /slots/N saves conversations to; a key that may ask may overwrite any of "
        "them. Empty: not done."),
    TEXT(gateway, poolctl, "", "poolctl, which saves them; empty: the one beside the gateway."),
};
const size_t config_n_keys = ARRAY_LEN(config_keys);
