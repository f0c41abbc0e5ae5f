"""Between torch and here: reference fixtures, the authors' checkpoints, weight files."""

from based_jax.convert.pretrained import load_pretrained, save_pretrained
from based_jax.convert.reference_modules import from_torch, to_torch
from based_jax.convert.state_dict import expect_keys, read_state_dict, write_safetensors
from based_jax.convert.torch_file.instructions import CheckpointError, UnsafeCheckpointError

__all__ = [
    "CheckpointError",
    "UnsafeCheckpointError",
    "expect_keys",
    "from_torch",
    "load_pretrained",
    "read_state_dict",
    "save_pretrained",
    "to_torch",
    "write_safetensors",
]
