"""Check that all entries of a fixture's meta are known arguments of the class that it names."""

import re
from collections.abc import Mapping
from typing import Any

from based_jax.convert.options import expect_supported, tables
from based_jax.validate import expect, nearest

ALIASES = {
    "based LinearAttention": "based.models.mixers.linear_attention.LinearAttention",
    "based ShortConvolution": "based.models.mixers.convolution.ShortConvolution",
    "based.models.mlp.Mlp": "flash_attn.modules.mlp.Mlp",
    "flash_attn.modules.block.Block": "based.models.block.Block",
    "flash_attn.ops.triton.layer_norm.RMSNorm": "based.ops.triton.layer_norm.RMSNorm",
    "torch.nn.LayerNorm": "based.ops.triton.layer_norm.RMSNorm",
}
"""Path of a class -> path of a class with the same arguments."""

DESCRIPTION = (
    # the module, and how its numbers were computed
    *("module", "kind", "description", "note", "notes", "what", "quirk", "replaced", "seed", "inputs"),
    *("train_mode", "causal", "grads_computed_in", "generation", "params_in"),
    # values derived from the arguments
    *("d_model", "visible_keys", "window", "window_left", "global_tokens", "random_tokens", "d_inner"),
    *("hidden", "key_dim", "value_dim", "expanded_size"),
)
"""Entries of a meta that are not arguments."""

_BLOCK = ("norm", "eps", "mixer", "mlp", "drop_path", "tied_norm", "parallel_block_tied_norm")
_ROTARY = ("rotary_base", "rotary_interleaved")
SPELLINGS = {
    "Block": _BLOCK,
    "GatedMlp": ("bias", "mlp_type", "ff_mult"),
    "MHA": ("bias", *_ROTARY),
    "Mlp": ("bias",),
    "ParallelBlock": _BLOCK,
    "SlidingAttention": _ROTARY,
}
"""Fixtures' own names of a class's arguments."""

_MEASURED = re.compile(
    r"(err|tol|causal|min|max|measured)(32|64|_\w+)?|\w+_(bits|len|steps|seed|tokens|measured)"
)


def is_description(name: str) -> bool:
    """Return whether an entry of a meta says how its numbers were computed, or is derived from arguments."""
    return name in DESCRIPTION or _MEASURED.fullmatch(name) is not None


def expect_arguments(path: str, given: Mapping[str, Any]) -> None:
    """Check the arguments with which a class was built against the tables of `convert.options`.

    Args:
        path: the class, as named in `references.table`; a class without a table is not checked.
        given: arguments, and descriptions. Text of several words counts as a description.

    Raises:
        ValueError: an entry that is neither, or an argument that is not supported.
    """
    name_of_class = path.rpartition(".")[2]
    table = tables().get(ALIASES.get(path, path))
    if table is None:
        return
    for name, value in given.items():
        if is_description(name) or name in SPELLINGS.get(name_of_class, ()):
            continue
        is_text = isinstance(value, str) and " " in value
        expected = f"one of {', '.join(sorted(table))}{nearest(name, list(table))}"
        expect(name in table or is_text, f"argument of {name_of_class}", name, expected)
        if name in table:
            expect_supported(table[name], value)
