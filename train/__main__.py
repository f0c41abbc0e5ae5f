"""List the commands: ``based-jax train``."""

from based_jax import command_list

REMARKS = """A first run, in minutes: based-jax train lm --preset based-tiny --data stdlib --steps 1000
--workdir runs/first. docs/training.md explains it."""

if __name__ == "__main__":
    command_list.run("train", __file__, REMARKS)
