"""List the commands: ``python -m papers``."""

from based_jax import command_list

REMARKS = """papers/README.md explains what is in each folder."""

if __name__ == "__main__":
    command_list.run("papers", __file__, REMARKS)
