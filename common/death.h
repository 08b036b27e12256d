/* SPDX-License-Identifier: MIT */
#ifndef COMMON_DEATH_H
#define COMMON_DEATH_H
/*
 * Named points at which a program built with -Ddeath_points=true dies, stops or hangs when the
 * environment asks for it. In poold they lie between any two stores to shared memory: every such
 * store has a point directly before it, a commit also one directly after it; tests/death_points.py
 * counts them from the source. In workerd they lie where a story wants a worker to stand still. In
 * other builds nothing is left of them. One thread of a process comes by a point.
 *
 *   CISTERN_DIE_AT=NAME[:N]   kill -9 of itself at the N-th (first) time that it comes by NAME
 *   CISTERN_STOP_AT=NAME[:N]  SIGSTOP of itself there; what continues it makes it go on
 *   CISTERN_HANG_AT=NAME[:N]  this thread never goes on; the others do
 *   CISTERN_DEATH_LOG=PATH    a line with the name each time that it comes by a point
 *   CISTERN_TRAP_AT=NAME[:N]  where the point is a DEATH_TRAP, its device is to fail for good
 */
#ifdef CISTERN_DEATH_POINTS
#include <stdbool.h>
void death_point(const char *name);
bool death_trap(const char *name);
#define DEATH_POINT(name) death_point(name)
#define DEATH_TRAP(name) death_trap(name)
#else
#define DEATH_POINT(name) ((void)0)
#define DEATH_TRAP(name) false
#endif

#endif
