"""Flax modules that take arrays on any mesh: mixers, language models and classifiers."""

import contextvars
from typing import Any, cast

from flax import linen as nn

from based_jax.ops.core import sharding

_wants_output = contextvars.ContextVar("wants_output", default=True)


class Module(nn.Module):
    """`nn.Module` whose `apply` and `init` switch a mesh's Explicit axes to Auto.

    Outputs are sharded over the batch like the first array of the call whose rows are sharded; new variables
    are replicated. An outer module of another library does not call these methods: wrap its `apply` in
    `jax.sharding.auto_axes`.
    """

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the module with `variables`, see `nn.Module.apply`."""
        inputs = [value for name, value in kwargs.items() if name != "rngs"]
        return sharding.isolated(self._apply, (variables, *args), kwargs, like=(args, inputs))

    @nn.nowrap
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on a mesh without Explicit axes."""
        return super().apply(*args, **kwargs)

    @nn.nowrap
    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """Initialise the variables, see `nn.Module.init`; models do not call their layers."""
        before = _wants_output.set(False)
        try:
            return super().init(rngs, *args, **kwargs)
        finally:
            _wants_output.reset(before)

    @nn.nowrap
    def init_with_output(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """Initialise the variables, see `nn.Module.init_with_output`."""
        return sharding.isolated(cast(Any, super().init_with_output), (rngs, *args), kwargs)


def wants_output() -> bool:
    """Return whether the caller uses the output of the module; `init` does not."""
    return _wants_output.get()
