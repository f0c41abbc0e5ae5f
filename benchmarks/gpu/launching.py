"""Whether and how kernels are launched in a measurement."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import jax

from pallas_kernels import launch


@contextmanager
def launching(interpret: bool) -> Iterator[None]:
    """Launch kernels inside, in the interpreter if `interpret`, without jax's warning at every lowering.

    jax 0.11 warns that the Triton backend of Pallas will be removed; see docs/kernels.md.
    """
    with warnings.catch_warnings(), launch.interpreted() if interpret else nullcontext():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        yield


def backend() -> str:
    """Return the platform of the first device, such as "gpu", or why there is none."""
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # jax 0.10 asserts that JAX_PLATFORMS has one
        return str(error) or "none"
