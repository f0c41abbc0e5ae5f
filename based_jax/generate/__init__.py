"""Generate text with a language model: sampling, decoding, streaming and continuous batching.

`based_jax.generate` is the function once `based_jax` is imported, so `from based_jax.generate import stream`
works and `import based_jax.generate.loop as loop` does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

from based_jax.generate.loop import generate as generate
from based_jax.generate.loop import stream as stream
from based_jax.generate.sampling import Sampler as Sampler

if TYPE_CHECKING:
    from based_jax.generate.engine.engine import Engine as Engine
    from based_jax.generate.engine.prefix_cache import PrefixCache as PrefixCache
    from based_jax.generate.engine.request import Completion as Completion
    from based_jax.generate.engine.request import Event as Event
    from based_jax.generate.engine.request import Full as Full
    from based_jax.generate.engine.request import Request as Request
    from based_jax.generate.engine.request import Stats as Stats
    from based_jax.generate.engine.request import TokenLogprob as TokenLogprob
    from based_jax.generate.engine.snapshot import Snapshot as Snapshot
    from based_jax.generate.engine.snapshot import load_snapshot as load_snapshot
    from based_jax.generate.engine.snapshot import save_snapshot as save_snapshot
    from based_jax.generate.engine.snapshot import snapshot as snapshot
    from based_jax.generate.speculative import Speculation as Speculation
    from based_jax.generate.speculative import early_exit as early_exit
    from based_jax.generate.speculative import speculate as speculate
    from based_jax.generate.weights import decoding_weights as decoding_weights

_AT_FIRST_USE = {
    "engine.engine": ("Engine",),
    "engine.prefix_cache": ("PrefixCache",),
    "engine.request": ("Completion", "Event", "Full", "Request", "Stats", "TokenLogprob"),
    "engine.snapshot": ("Snapshot", "load_snapshot", "save_snapshot", "snapshot"),
    "speculative": ("Speculation", "early_exit", "speculate"),
    "weights": ("decoding_weights",),
}
"""Modules imported on first use, so that `import based_jax` stays fast -> their public names."""


def __getattr__(name: str) -> Any:
    for module, names in _AT_FIRST_USE.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
