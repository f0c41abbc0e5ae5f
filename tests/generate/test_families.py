"""Every kind of state decodes what recomputing the whole text would, in batches of any lengths.

The models are float64: batches that are rounded differently still make the same tokens.
"""

import numpy as np
import pytest

from based_jax import mixers
from based_jax.generate import generate
from based_jax.models.config import MixerSpec
from tests.generate.tiny import LENGTH, make_tiny
from tests.marks import slow_but

STEPS = 12
PROMPTS = [[7], [3, 1], [4, 4, 9, 0, 2, 30, 49, 8], [*range(3, 41, 2)]]
OPTIONS = {
    "attention": {"num_heads": 2, "num_kv_heads": 1},
    "base_conv": {"kernel_size": 5},
    "bigbird": {"num_heads": 2, "block_size": 1, "l_max": 48},
    "blocked_window": {"num_heads": 2, "width": 5},
    "conv_basis": {"num_heads": 2},
    "gla": {"num_heads": 2, "gate_low_rank_dim": 2},
    "h3": {"d_state": 6, "head_dim": 2},
    "hyena": {"l_max": 48, "filter_order": 6},
    "hyper_attention": {"num_heads": 2},
    "linear_attention": {"num_heads": 2, "feature_dim": 3},
    "long_conv": {"l_max": 48},
    "mamba2": {"d_state": 3, "head_dim": 8},
    "nystrom": {"num_heads": 2, "num_landmarks": 4, "l_max": 48},
    "retnet": {"num_heads": 2},
    "rwkv5": {"head_size": 4},
    "rwkv7": {"head_dim": 4, "decay_rank": 2, "gate_rank": 3, "rate_rank": 2},
    "scatterbrain": {"num_heads": 2, "left": 2, "feature_dim": 6},
    "sliding_window": {"num_heads": 2, "left": 5},
    "sma": {"num_heads": 2},
}
"""where the mixer's own would not fit a width of 16 or texts of 48 tokens"""

MIXED = ("mamba", "gla")


def model_of(*names):
    letters = "ABCDE"[: len(names)]
    specs = {
        letter: MixerSpec(name, OPTIONS.get(name, {})) for letter, name in zip(letters, names, strict=True)
    }
    return make_tiny(letters, mixers=specs, dtype="float64")


@pytest.mark.release
@pytest.mark.parametrize("names", slow_but([MIXED], [MIXED, *((name,) for name in mixers.names())]), ids=str)
def test_greedy_is_the_full_forward_at_every_step(x64, names):
    case = model_of(*names)
    made = np.asarray(generate(case.model, case.params, PROMPTS, STEPS))
    texts = np.zeros((len(PROMPTS), LENGTH), int)
    for text, prompt, answer in zip(texts, PROMPTS, made, strict=True):
        text[: len(prompt) + STEPS] = [*prompt, *answer]
    # By induction: what comes after a token does not change it.
    logits = np.asarray(case.forward(case.params, texts))[:, :, : case.model.config.vocab_size]
    for prompt, answer, row in zip(PROMPTS, made, logits.argmax(axis=-1), strict=True):
        assert row[len(prompt) - 1 :][:STEPS].tolist() == answer.tolist()
    assert len(np.unique(made)) >= (8 if names == MIXED else 4), "the case is too easy"
    if names != MIXED:
        alone = generate(case.model, case.params, PROMPTS[3:], STEPS, prefill_chunk=4)
        assert alone[0].tolist() == made[3].tolist()
