/* SPDX-License-Identifier: MIT */
/*
 * How a stage can tell the next one, in another process on another card, that its activations are
 * there; prints CSV (us, one way). Two processes play ping-pong: each copies `bytes` into the
 * other's inbox (CUDA IPC), gives notice, and who has the notice copies them on within its card and
 * answers.
 *
 *   host        the sender's host waits for its copy, then rings: a store and a futex wake (what
 *               workerd does; the waiter sleeps)
 *   host-spin   the same, the waiter spins
 *   write       cuStreamWriteValue64 into pinned memory behind the copy; the waiter's host spins (a
 *               device wakes no futex)
 *   event       an interprocess event behind the copy, rung at once; the other's stream waits for
 * it wait        cuStreamWriteValue64, and the other's stream waits by cuStreamWaitValue64, no host
 *               between
 *
 * Then what the last two do when the sender is killed: how long the waiting stream stands still.
 *
 *   gpu_bells [ROUNDS]     uses cuda:0 and, where there is one, cuda:1
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum method { HOST, HOST_SPIN, WRITE, EVENT, WAIT, METHODS };
static const char *const names[METHODS] = {"host", "host-spin", "write", "event", "wait"};
static const size_t sizes[] = {16 << 10, 256 << 10, 8 << 20}; /* 1, 16, 512 rows of 4,096 values */
enum { N_SIZES = 3, WARM = 50, STUCK_US = 2000000, BYTES = 8 << 20 };

struct side { /* a line of its own for what is waited at */
    alignas(128) uint32_t bell;
    alignas(128) uint64_t word;
    alignas(128) uint32_t here;
    cudaIpcMemHandle_t inbox;
    cudaIpcEventHandle_t event;
};
struct shared {
    struct side side[2];
    uint32_t release; /* of the kernel that keeps a dead one's event from being reached */
};

typedef CUresult (*value_fn)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
static value_fn write_value, wait_value;
static struct shared *between;
static int me;
static uint8_t *own, *inbox, *peer;
static cudaEvent_t event, peer_event;
static cudaStream_t stream;

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    _exit(1);
}
#define CHECK(x) check(x, #x)

static double now_us()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void ring(uint32_t n)
{
    uint32_t *at = &between->side[1 - me].bell;
    __atomic_store_n(at, n, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, at, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void bell_wait(uint32_t n, bool spin)
{
    uint32_t *at = &between->side[me].bell, v;
    while ((v = __atomic_load_n(at, __ATOMIC_SEQ_CST)) != n)
        if (!spin) syscall(SYS_futex, at, FUTEX_WAIT, v, NULL, NULL, 0);
}

static CUdeviceptr word_of(int side) { return (CUdeviceptr)(uintptr_t)&between->side[side].word; }

static void give(int method, size_t bytes, uint32_t n)
{
    CHECK(cudaMemcpyAsync(peer, own, bytes, cudaMemcpyDeviceToDevice, stream));
    if (method == WRITE || method == WAIT) {
        if (write_value((CUstream)stream, word_of(1 - me), n, 0)) check(cudaErrorUnknown, "write");
        return;
    }
    if (method == EVENT)
        CHECK(cudaEventRecord(event, stream));
    else
        CHECK(cudaStreamSynchronize(stream));
    ring(n);
}

static void take(int method, size_t bytes, uint32_t n)
{
    if (method == HOST || method == EVENT) bell_wait(n, false);
    if (method == HOST_SPIN) bell_wait(n, true);
    if (method == WRITE)
        while (__atomic_load_n(&between->side[me].word, __ATOMIC_ACQUIRE) != n)
            ;
    if (method == EVENT) CHECK(cudaStreamWaitEvent(stream, peer_event, 0));
    if (method == WAIT && wait_value((CUstream)stream, word_of(me), n, CU_STREAM_WAIT_VALUE_GEQ))
        check(cudaErrorUnknown, "wait");
    CHECK(cudaMemcpyAsync(own, inbox, bytes, cudaMemcpyDeviceToDevice, stream));
}

static void meet(uint32_t n)
{
    CHECK(cudaStreamSynchronize(stream));
    __atomic_store_n(&between->side[me].here, n, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&between->side[1 - me].here, __ATOMIC_SEQ_CST) < n)
        usleep(50);
}

static void play(int rounds)
{
    uint32_t n = 1, met = 2;
    for (int m = 0; m < METHODS; m++)
        for (int s = 0; s < N_SIZES; s++) {
            meet(met++);
            double begin = 0;
            for (int i = 0; i < WARM + rounds; i++, n++) {
                if (i == WARM) begin = now_us();
                if (me == 0) give(m, sizes[s], n);
                take(m, sizes[s], n);
                if (me == 1) give(m, sizes[s], n);
            }
            CHECK(cudaStreamSynchronize(stream));
            if (me == 0)
                printf("%s,%zu,%.2f\n", names[m], sizes[s], (now_us() - begin) / rounds / 2);
            fflush(stdout);
        }
    meet(met);
}

/* ---- deaths ---- */

static __global__ void stand(volatile uint32_t *release)
{
    while (!*release)
        ;
}

static double stands_us(double until)
{
    double begin = now_us();
    while (cudaStreamQuery(stream) == cudaErrorNotReady && now_us() < begin + until)
        usleep(100);
    return now_us() - begin;
}

static void report(const char *what, double us)
{
    printf("%s,%s,%.0f\n", what, us < STUCK_US ? "goes on" : "stands still", us);
    fflush(stdout);
}

static void say(const char *what, double begin)
{
    printf("%s,us,%.0f\n", what, now_us() - begin);
    fflush(stdout);
}

/* Side 1 dies with an event recorded that its card never reaches; side 0 waits for it. What stands
 * still comes last: it holds up what this process does afterwards. */
static void die(pid_t other)
{
    if (me == 1) {
        stand<<<1, 1, 0, stream>>>(&between->release);
        CHECK(cudaEventRecord(event, stream));
        ring(UINT32_MAX);
        pause();
    }
    bell_wait(UINT32_MAX, false);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    double begin = now_us();
    CHECK(cudaMemcpyAsync(peer, own, BYTES, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    say("copy into a dead process's memory", begin);
    (void)wait_value((CUstream)stream, word_of(0), (cuuint64_t)1 << 40, CU_STREAM_WAIT_VALUE_GEQ);
    CHECK(cudaMemcpyAsync(own, inbox, 16, cudaMemcpyDeviceToDevice, stream));
    report("word of a dead process", stands_us(STUCK_US));
    __atomic_store_n(&between->side[0].word, INT64_MAX, __ATOMIC_SEQ_CST);
    report("the same once the host writes the largest number", stands_us(STUCK_US));
    begin = now_us();
    CHECK(cudaIpcCloseMemHandle(peer));
    say("closing a dead process's memory", begin);
    CHECK(cudaStreamWaitEvent(stream, peer_event, 0));
    CHECK(cudaMemcpyAsync(own, inbox, 16, cudaMemcpyDeviceToDevice, stream));
    report("event of a dead process", stands_us(STUCK_US));
}

static void prepare(int fd)
{
    int n = 0;
    between =
        (struct shared *)mmap(NULL, sizeof(*between), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    write_value = (value_fn)dlsym(driver, "cuStreamWriteValue64_v2");
    wait_value = (value_fn)dlsym(driver, "cuStreamWaitValue64_v2");
    CHECK(cudaGetDeviceCount(&n));
    CHECK(cudaSetDevice(n > 1 ? me : 0));
    CHECK(cudaHostRegister(between, (sizeof(*between) + 4095) / 4096 * 4096,
                           cudaHostRegisterMapped | cudaHostRegisterPortable));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&own, BYTES));
    CHECK(cudaMalloc(&inbox, BYTES));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    struct side *side = &between->side[me], *other = &between->side[1 - me];
    CHECK(cudaIpcGetMemHandle(&side->inbox, inbox));
    CHECK(cudaIpcGetEventHandle(&side->event, event));
    meet(1);
    double begin = now_us();
    CHECK(cudaIpcOpenMemHandle((void **)&peer, other->inbox, cudaIpcMemLazyEnablePeerAccess));
    if (me == 0) printf("opening a handle,us,%.0f\n", now_us() - begin);
    CHECK(cudaIpcOpenEventHandle(&peer_event, other->event));
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 500;
    alarm(40);      /* neither outlives a card that does not answer */
    if (argc > 2) { /* the other side: ROUNDS FD */
        me = 1;
        prepare(atoi(argv[2]));
        play(rounds);
        die(0);
        return 0;
    }
    int fd = memfd_create("bells", 0);
    if (fd < 0 || ftruncate(fd, (sizeof(struct shared) + 4095) / 4096 * 4096) < 0) return 1;
    pid_t other = fork(); /* before any call of CUDA */
    if (other == 0) {
        char r[16], f[16];
        snprintf(r, sizeof(r), "%d", rounds);
        snprintf(f, sizeof(f), "%d", fd);
        execl("/proc/self/exe", argv[0], r, f, (char *)NULL);
        _exit(1);
    }
    prepare(fd);
    puts("method,bytes,us one way");
    play(rounds);
    die(other);
    fflush(stdout);
    _exit(0); /* not through whatever still waits */
}
