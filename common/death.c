/* SPDX-License-Identifier: MIT */
/* Death by name, for tests. Called by DEATH_POINT and DEATH_TRAP; allocates nothing. */
#include "common/death.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned long times_left(const char *wanted, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(wanted, name, n) != 0 || (wanted[n] != 0 && wanted[n] != ':')) return 0;
    return wanted[n] ? strtoul(wanted + n + 1, NULL, 10) : 1;
}

static void note(const char *path, const char *name)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, name, strlen(name)) < 0 || write(fd, "\n", 1) < 0) abort();
    (void)close(fd);
}

/* Whether this is the time at which it is to happen. */
static bool is_due(const char *variable, const char *name, unsigned long *passed)
{
    const char *wanted = getenv(variable);
    unsigned long at = wanted ? times_left(wanted, name) : 0;
    return at > 0 && ++*passed == at;
}

void death_point(const char *name)
{
    static unsigned long die, stop, hang;
    const char *log = getenv("CISTERN_DEATH_LOG");
    if (log) note(log, name);
    bool ends = is_due("CISTERN_DIE_AT", name, &die);
    if (ends) (void)kill(getpid(), SIGKILL);
    /* To this very thread, which so goes no further; it takes the others along. */
    if (is_due("CISTERN_STOP_AT", name, &stop)) (void)raise(SIGSTOP);
    if (is_due("CISTERN_HANG_AT", name, &hang)) ends = true;
    while (ends)
        (void)pause();
}

bool death_trap(const char *name)
{
    static unsigned long trap;
    death_point(name);
    return is_due("CISTERN_TRAP_AT", name, &trap);
}
