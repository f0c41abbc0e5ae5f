"""Based and Transformer++ once more, in torch, for side-by-side timings. Needs torch, on a CPU.

Our own statement of the equations in the docstrings of `based_jax.mixers`, with the parameters' names of the
authors' code, so that `based_jax.convert` carries weights over.
"""
