/* SPDX-License-Identifier: MIT */
#ifndef COMMON_POOLCTL_EXIT_H
#define COMMON_POOLCTL_EXIT_H
/*
 * Exit codes of poolctl: what it says in words (poolctl --help), and what the gateway, which has
 * slots saved and restored by it, goes by. A new one: a row in poolctl.c, in slots.c, in its man
 * page.
 */
enum {
    EXIT_DONE = 0,
    EXIT_REFUSED = 1, /* or wrong use; of doctor: something would not fit */
    EXIT_UNREACHED = 2,
    EXIT_UNKNOWN = 3,
    EXIT_LATER = 4, /* busy, full, not ready: the same may work later */
    EXIT_DENIED = 5,
    EXIT_FILE = 6,      /* can't be read or written */
    EXIT_DAMAGED = 7,   /* no saved conversation, or a checksum does not hold */
    EXIT_FOREIGN = 8,   /* of another model, arithmetic, layout or release */
    EXIT_MISSING = 9,   /* there is no such file */
    EXIT_TRUNCATED = 10 /* its end is missing */
};

#endif
