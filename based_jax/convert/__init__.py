"""Convert between torch and JAX: the authors' checkpoints and modules, fla's models, weight files."""

from based_jax.convert.model_card import Measurement as Measurement
from based_jax.convert.model_card import ModelCard as ModelCard
from based_jax.convert.pretrained import load_pretrained as load_pretrained
from based_jax.convert.pretrained import save_pretrained as save_pretrained
from based_jax.convert.reference_modules import from_torch as from_torch
from based_jax.convert.reference_modules import to_torch as to_torch
from based_jax.convert.state_dict import expect_keys as expect_keys
from based_jax.convert.state_dict import read_state_dict as read_state_dict
from based_jax.convert.state_dict import write_safetensors as write_safetensors
from based_jax.convert.torch_file.instructions import CheckpointError as CheckpointError
from based_jax.convert.torch_file.instructions import UnsafeCheckpointError as UnsafeCheckpointError
