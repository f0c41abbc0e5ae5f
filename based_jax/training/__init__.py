"""Train models: language models, recall, classifiers.

::

    step                one optimizer step, compiled; its batches and state
    loop                steps, evaluations and checkpoints until the end or a signal
    optimizer           AdamW and Muon, schedules, weight-decay groups
    low_rank            low-rank fine-tuning (LoRA)
    initial_weights     starting a run from a checkpoint's weights
    lm_config, recipes  settings of language-model runs, and files of settings
    banner              the summaries printed at the start and the end of a run
    devices/            meshes, several hosts, dry runs
    run/                the run directory: config, metrics, events, checkpoints, progress
    mqar/               sweeps on synthetic tasks: all learning rates and seeds in one compiled program
    commands/           the command lines

``based-jax train NAME`` runs a command.
"""
