"""Language models as programs that run without this library, written by `jax.export`, with their runner."""

from based_jax.export.directory import export_model
from based_jax.export.plan import Plan
from based_jax.export.programs import Programs, export_programs
from based_jax.export.runner import Exported

__all__ = ["Exported", "Plan", "Programs", "export_model", "export_programs"]
