"""Export language models with `jax.export` as programs that run without this library, with a runner."""

from based_jax.export.directory import export_model
from based_jax.export.programs import Plan, Programs, export_programs
from based_jax.export.runner import Exported

__all__ = ["Exported", "Plan", "Programs", "export_model", "export_programs"]
