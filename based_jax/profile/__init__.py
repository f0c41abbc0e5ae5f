"""Count a model's parameters, floating-point operations and state by tracing, without running it.

``based-jax profile --preset NAME --length N``
"""

from based_jax.profile.operations import Operations, count_operations, model_flops, training_operations
from based_jax.published.tables import training_flops

__all__ = ["Operations", "count_operations", "model_flops", "training_flops", "training_operations"]
