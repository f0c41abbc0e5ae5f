"""Laws of sequence layers: `check_mixer` for mixers of the contract, `check_layer` for any layer."""

from typing import TYPE_CHECKING

from based_jax.imports import on_first_use

if TYPE_CHECKING:
    from based_jax.testing.layers import Layer, Report, check_layer
    from based_jax.testing.mixer import check_mixer

__all__ = ["Layer", "Report", "check_layer", "check_mixer"]

__getattr__, __dir__ = on_first_use(
    __name__, {"mixer": ("check_mixer",), "layers": ("Layer", "Report", "check_layer")}
)
