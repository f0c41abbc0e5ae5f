"""Generate text with a language model: sampling, decoding, streaming and continuous batching.

The attribute `generate` of `based_jax` is the function, so `from based_jax.generate import stream`
works and `import based_jax.generate.loop as loop` does not.
"""

from based_jax.generate.engine.engine import Engine as Engine
from based_jax.generate.engine.request import Completion as Completion
from based_jax.generate.engine.request import Event as Event
from based_jax.generate.engine.request import Full as Full
from based_jax.generate.engine.request import Request as Request
from based_jax.generate.engine.request import Stats as Stats
from based_jax.generate.engine.request import TokenLogprob as TokenLogprob
from based_jax.generate.loop import generate as generate
from based_jax.generate.loop import snapshot as snapshot
from based_jax.generate.loop import stream as stream
from based_jax.generate.prefix import PrefixCache as PrefixCache
from based_jax.generate.prefix import Snapshot as Snapshot
from based_jax.generate.sampling import Sampler as Sampler
from based_jax.generate.weights import decoding_weights as decoding_weights
