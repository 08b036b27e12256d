/* SPDX-License-Identifier: MIT */
/*
 * workerd: one stage of a pipeline. The command line, the configuration, and the exit code.
 */
#include "common/log.h"
#include "workerd/worker.h"

int main(int argc, char **argv)
{
    struct worker_place place = {0};
    const struct config_option options[] = {
        {"pipeline", &place.pipeline, POOL_PIPELINES_MAX - 1, "which pipeline it belongs to (0)"},
        {"stage",    &place.stage,    POOL_STAGES_MAX - 1,    "which stage it runs (0)"         },
    };
    struct why why = {0};
    log_init("workerd", LOG_LEVEL_INFO);
    CLEANUP(config_freep) struct config *config = NULL;
    int r = config_from_args(argc, argv, "workerd", "computes one stage of a model's layers",
                             options, ARRAY_LEN(options), &why, &config);
    if (r == 1) return 0;
    if (r == 0) r = worker_run(config, &place, &why);
    if (r == 0) return 0;
    if (why.text[0]) log_error("%s", why.text);
    return 1;
}
