"""A server of completions over HTTP, in the shapes of OpenAI's: ``python -m based_jax.serve``.

It needs packages that the rest does not: ``pip install 'based-jax[serve]'``.
"""
