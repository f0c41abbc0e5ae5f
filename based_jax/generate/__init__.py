"""Text from a language model: sampling, the decoding loop, streaming.

As an attribute of `based_jax`, `generate` is the function; imports see the package all the same:
`from based_jax.generate import stream` works, `import based_jax.generate.loop as loop` does not.
"""

from based_jax.generate.loop import generate, stream
from based_jax.generate.sampling import Sampler

__all__ = ["Sampler", "generate", "stream"]
