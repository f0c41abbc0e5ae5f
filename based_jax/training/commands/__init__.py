"""The command lines of `based-jax train`: each file has a `main`."""
