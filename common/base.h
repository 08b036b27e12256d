/* SPDX-License-Identifier: MIT */
#ifndef COMMON_BASE_H
#define COMMON_BASE_H
/*
 * What every file may use: release at the end of a scope, hand-over of ownership, and the sentence
 * that goes with a failure. Nothing here allocates, but xcalloc, which ends the process when memory
 * is out: our own tables are sized at start, and a size from outside never reaches it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(f) __attribute__((cleanup(f)))
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* Moves a pointer out of a variable that a CLEANUP would free. */
#define TAKE(p)                                                                                    \
    __extension__({                                                                                \
        __typeof__(p) taken_ = (p);                                                                \
        (p) = NULL;                                                                                \
        taken_;                                                                                    \
    })
/* The same for a file descriptor. */
#define TAKE_FD(fd)                                                                                \
    __extension__({                                                                                \
        int taken_ = (fd);                                                                         \
        (fd) = -1;                                                                                 \
        taken_;                                                                                    \
    })

static inline void freep(void *p) { free(*(void **)p); }
static inline void closep(int *fd)
{
    if (*fd >= 0) (void)close(*fd);
}
static inline void fclosep(FILE **f)
{
    if (*f) (void)fclose(*f);
}

static inline void *xcalloc(size_t n, size_t bytes)
{
    void *p = calloc(n ? n : 1, bytes);
    if (!p) abort();
    return p;
}
#define xnew(type) ((type *)xcalloc(1, sizeof(type)))

static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
/* The least multiple of step that is not below v. */
static inline uint64_t round_up_u64(uint64_t v, uint64_t step)
{
    return (v + step - 1) / step * step;
}
static inline uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* The sentence of a failure, for whoever decides what it means and reports it. */
struct why {
    char text[512];
};

/* Fills why (which may be NULL) and returns r, so that a failing line is one line:
 *     return why_set(why, -EINVAL, "%s: tensor '%s' has %u dimensions", path, name, n); */
__attribute__((format(printf, 3, 4))) static inline int why_set(struct why *why, int r,
                                                                const char *format, ...)
{
    if (!why) return r;
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(why->text, sizeof(why->text), format, ap);
    va_end(ap);
    return r;
}

#endif
