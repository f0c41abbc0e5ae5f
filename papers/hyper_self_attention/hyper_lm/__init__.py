"""Compare language models with self-attention, HyperFeatureAttention and HyperAttention.

``python -m papers.hyper_self_attention.hyper_lm --scale smoke|cpu|paper --out DIR``

Ustaomeroglu and Qu, "A Theoretical Study of (Hyper) Self-Attention through the Lens of Interactions", Tables
1 and 2: perplexities on OpenWebText, at equal numbers of parameters but for HyperAttention without sharing,
which has 2 d^2 more per layer. The paper has no code.
"""
