/* SPDX-License-Identifier: MIT */
/* Death by name, for tests. Called by DEATH_POINT from the loop thread; allocates nothing. */
#include "poold/death.h"

#include <fcntl.h>
#include <signal.h>
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

void death_point(const char *name)
{
    static unsigned long passed;
    const char *wanted = getenv("CISTERN_DIE_AT"), *log = getenv("CISTERN_DEATH_LOG");
    if (log) note(log, name);
    unsigned long at = wanted ? times_left(wanted, name) : 0;
    if (at == 0 || ++passed < at) return;
    (void)kill(getpid(), SIGKILL);
    for (;;)
        (void)pause();
}
