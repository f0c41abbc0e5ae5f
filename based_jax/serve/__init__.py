"""Serve completions over HTTP in the format of OpenAI's API: ``based-jax serve``.

Needs extra packages: ``pip install 'based-jax[serve]'``.
"""
