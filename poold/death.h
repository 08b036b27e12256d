/* SPDX-License-Identifier: MIT */
#ifndef POOLD_DEATH_H
#define POOLD_DEATH_H
/*
 * Named points at which a poold built with -Ddeath_points=true kills itself when the environment
 * asks for it, so that a test can end it between any two stores to shared memory. Every such store
 * has a point directly before it, a commit also one directly after it; tests/death_points.py counts
 * them from the source. In other builds nothing is left of them.
 *
 *   CISTERN_DIE_AT=NAME[:N]   kill -9 of itself at the N-th (first) time that it comes by NAME
 *   CISTERN_DEATH_LOG=PATH    a line with the name each time that it comes by a point
 */
#ifdef CISTERN_DEATH_POINTS
void death_point(const char *name);
#define DEATH_POINT(name) death_point(name)
#else
#define DEATH_POINT(name) ((void)0)
#endif

#endif
