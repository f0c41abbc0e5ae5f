"""The list of commands: ``python -m based_jax``."""

from based_jax import command_list

REMARKS = """Models are trained by the commands that python -m train lists, and times are measured by those of
python -m benchmarks --help. docs/guide.md is about Python."""

if __name__ == "__main__":
    command_list.run("based_jax", __file__, REMARKS)
