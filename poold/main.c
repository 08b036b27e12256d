/* SPDX-License-Identifier: MIT */
/* poold: the daemon that owns the pool. Options, configuration, run. */
#include "common/log.h"
#include "poold/daemon.h"

int main(int argc, char **argv)
{
    struct why why = {0};
    CLEANUP(config_freep) struct config *config = NULL;
    log_init("poold", LOG_LEVEL_INFO);
    int r = config_from_args(argc, argv, "poold", "owns Cistern's pool of K/V memory", NULL, 0,
                             &why, &config);
    if (r == 0) r = daemon_run(config, &why);
    if (r < 0 && *why.text) log_error("%s", why.text); /* empty: it was logged where it happened */
    return r < 0 ? 1 : 0;
}
