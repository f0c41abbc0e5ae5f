"""Serve completions over HTTP in the format of OpenAI's API: ``python -m based_jax.serve``.

Needs extra packages: ``pip install 'based-jax[serve]'``.
"""
