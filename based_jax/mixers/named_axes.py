"""Parameters that carry logical axis names, in Flax linen and in NNX."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from flax import struct

Initializer = Callable[..., Any]


@struct.dataclass
class NamedAxes(nn.LogicallyPartitioned):  # pyright: ignore[reportMissingTypeArgument]
    """Linen's box of logical axis names, usable in NNX without a mesh.

    An `nnx.Variable` with axis names is put on a mesh when it is created, and raises if there is none. This
    one is put on a mesh only within `nn.logical_axis_rules`, where the names have a meaning.
    """

    def to_nnx_metadata(self) -> dict[str, Any]:
        """Return the metadata that `nnx.bridge.ToNNX` passes to the variable."""
        metadata: dict[str, Any] = dict(vars(self))
        metadata |= {"out_sharding": metadata.pop("names"), "sharding_rules": metadata.pop("rules")}
        is_placed = bool(nn.get_logical_axis_rules() or self.rules)
        return metadata if is_placed else metadata | {"eager_sharding": False}


def named(initializer: Initializer, *axes: str | None) -> Initializer:
    """Return an initializer whose parameter carries logical axis names (see `based_jax.training.devices`)."""

    def boxed(*args: Any, **kwargs: Any) -> NamedAxes:
        return NamedAxes(initializer(*args, **kwargs), axes)

    return boxed
