"""What hypothesis draws for the laws: where segments begin, how many tokens are real, where a text is cut.

Compiling dominates, so that the shapes themselves come from short tables of awkward cases, and everything
that is data (numbers, boundaries, paddings) is drawn.
"""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

seeds = st.integers(0, 2**32 - 1)
"""Seeds of the random numbers: shrinking floats one by one finds nothing that a seed does not."""


NO_FILL = st.nothing()
"""Every element is drawn: by default most of an array repeats one value."""


def segment_ids(batch: int, length: int) -> st.SearchStrategy[np.ndarray]:
    """Runs of ids 0, 1, 2, 0, ...: ids come back later in the row, for another document."""
    begins = npst.arrays(np.int32, (batch, length), elements=st.integers(0, 1), fill=NO_FILL)
    return begins.map(lambda x: (np.cumsum(x, axis=1) % 3).astype(np.int32))


def counts(batch: int, length: int) -> st.SearchStrategy[np.ndarray]:
    """Real tokens per row, none and all included."""
    return npst.arrays(np.int32, (batch,), elements=st.integers(0, length), fill=NO_FILL)


@st.composite
def chunks(draw_, length: int) -> list[int]:
    """Lengths of the chunks of a text of `length` tokens, cut anywhere, two chunks or more: few lengths."""
    sizes: list[int] = []
    while left := length - sum(sizes):
        sizes.append(draw_(st.sampled_from([size for size in (1, 2, 5) if size <= left and size < length])))
    return sizes


def mask(real: np.ndarray, length: int) -> np.ndarray:
    """Right padding as the ops take it."""
    return np.arange(length) < real[:, None]
