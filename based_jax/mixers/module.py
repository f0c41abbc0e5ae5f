"""Flax modules that take arrays on any mesh: mixers, language models and classifiers."""

from typing import Any, cast

from flax import linen as nn

from based_jax.ops.core import border


class Module(nn.Module):
    """`nn.Module` whose `apply` and `init` compute on Auto axes where the mesh's are Explicit.

    Outputs are sharded over the batch as the first array of the call is whose rows are; new variables are
    replicated. A module of somebody else's that has one of these inside calls neither of them: there put
    `jax.sharding.auto_axes` around the outer `apply`.
    """

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.apply`."""
        inputs = [value for name, value in kwargs.items() if name != "rngs"]
        return border.run(self._apply, (variables, *args), kwargs, like=(args, inputs))

    @nn.nowrap
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """`apply` once the mesh has no Explicit axes."""
        return super().apply(*args, **kwargs)

    @nn.nowrap
    def init_with_output(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.init_with_output`."""
        return border.run(cast(Any, super().init_with_output), (rngs, *args), kwargs)
