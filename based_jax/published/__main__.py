"""Run ``python -m based_jax.published``, the earlier name of based_jax.reports."""

import runpy

if __name__ == "__main__":
    runpy.run_module("based_jax.reports", run_name="__main__")
