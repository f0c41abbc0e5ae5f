"""Text from a language model: sampling, the decoding loop, streaming, many requests at once.

As an attribute of `based_jax`, `generate` is the function; imports see the package all the same:
`from based_jax.generate import stream` works, `import based_jax.generate.loop as loop` does not. In the same
way `snapshot` is the function here, beside the module of that name.
"""

from based_jax.generate.engine import Engine
from based_jax.generate.loop import generate, stream
from based_jax.generate.prefix_cache import PrefixCache
from based_jax.generate.request import Completion, Event, Full, Request, Stats, TokenLogprob
from based_jax.generate.sampling import Sampler
from based_jax.generate.snapshot import Snapshot, load_snapshot, save_snapshot, snapshot
from based_jax.generate.speculative import Speculation, early_exit, speculate
from based_jax.generate.weights import decoding_weights

__all__ = [
    "Completion",
    "Engine",
    "Event",
    "Full",
    "PrefixCache",
    "Request",
    "Sampler",
    "Snapshot",
    "Speculation",
    "Stats",
    "TokenLogprob",
    "decoding_weights",
    "early_exit",
    "generate",
    "load_snapshot",
    "save_snapshot",
    "snapshot",
    "speculate",
    "stream",
]
