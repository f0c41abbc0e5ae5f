"""Run the papers' studies, each a command: ``based-jax experiments NAME --scale cpu``.

A study of recall is a file: a grid of jobs for each scale, each a command line of `train synthetic`, and the
panels of its figure next to the papers' points. Its directory gets results.jsonl (one object per learning
rate and seed), figure.png, index.html and runs/ (logs and checkpoints of stopped jobs). The same command
resumes a study. `based-jax compare` draws any mixers in this way.
"""
