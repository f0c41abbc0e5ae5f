"""Measure how few convolutions the scores of attention are (Gu et al., "Conv-Basis").

The paper's attention is exact if the scores' columns are equal, lag by lag, within few segments. It has no
experiment on how close that is to attention on other inputs; this is one.

``python -m papers.conv_basis --scale cpu --out DIR`` runs it. The results are in
``papers/conv_basis/README.md``.
"""
