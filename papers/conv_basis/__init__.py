"""Measure how few convolutions the scores of attention are (Gu et al., "Conv-Basis").

The paper's attention is exact if the scores' columns are equal, lag by lag, within few segments. It has no
experiment on how close that is to attention on other inputs; this is one.

    settings            sizes
    inputs              queries and keys with few segments, and without
    approximations      dense: scores of few segments, their outputs' errors, the number of segments needed
    structured          the paper's inputs: are segments found, is attention exact, do the bounds hold
    drawn               errors against the number of segments for random inputs
    training            a small language model, trained by ``train lm``
    heads               the same for its heads, on held-out text
    replaced            its loss with other attention in place of its own
    recovered           the same for the paper's Recover, on each text and head
    figures, report     pictures; a page with all results

``python -m papers.conv_basis --scale cpu --out DIR`` runs all of them. The results are in
``papers/conv_basis/README.md``.
"""
