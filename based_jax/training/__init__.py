"""Train models: language models, recall, classifiers.

::

    step                one optimizer step, compiled; its batches and state
    loop                steps, evaluations and checkpoints until the end or a signal
    optimizer           AdamW, schedules, weight-decay groups
    bad_loss            steps that are skipped, rolled back or stop the run
    low_rank            fine-tuning by low-rank changes
    initial_weights     a run that begins with the weights of a checkpoint
    lm_config, recipes  settings of language models, and files of them
    banner              what a run reports at its start and its end
    devices/            meshes, sharding, several hosts, utilization
    run/                the run directory: config, metrics, events, checkpoints, progress, signals
    mqar/               every learning rate and seed of a recall task in one compiled program
    commands/           the command lines

``based-jax train NAME`` runs a command; in a checkout ``python -m train.NAME`` does the same.
"""
