"""Run the papers' studies, each a command: ``based-jax experiments NAME --scale cpu``.

    mqar_tradeoff       recall against the size of the state      Based, Figures 2 and 8
    mqar_gates          what H3 and Hyena need to recall          Based, Figure 2
    mqar_feature_maps   recall by feature map                     Based, Figure 3
    mqar_window         recall by window, with linear attention   Based, Figure 1, centre
    mqar_width          recall by model width                     Zoology, Figure 2, both halves
    mqar_pairs          recall by pairs, and by Hyena's heads     Zoology, Figures 6 and 7
    tasks               the other synthetic tasks, by mixer       Zoology's code, its experiments
    capabilities        MAD's tasks, joint recall, permutations   MAD, and three papers after it
    read_twice          recall with a context shown twice         Just read twice has no figure of it

A study of recall is a file: a grid of jobs for each scale, each a command line of `train synthetic`, and the
panels of its figure next to the papers' points. Its directory gets results.jsonl (one object per learning
rate and seed), figure.png, index.html and runs/ (logs and checkpoints of stopped jobs). The same command
resumes a study, and ``--add my_package.mixer:MyMixer`` adds a line to it.
"""
