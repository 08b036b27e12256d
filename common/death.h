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
 */
#ifdef CISTERN_DEATH_POINTS
void death_point(const char *name);
#define DEATH_POINT(name) death_point(name)
#else
#define DEATH_POINT(name) ((void)0)
#endif

#endif
