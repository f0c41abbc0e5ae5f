"""Encode blocks in parallel threads, with results in the order of the blocks.

The tokenizers library, which takes nine tenths of the time, lets other threads run while it encodes.
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from based_jax.data.shards.blocks import BLOCK, Block
from based_jax.data.shards.encoder import BlockEncoder, Encoded

_AHEAD = 2  # blocks per thread in flight: read, being encoded or not yet written
_MAX_BYTES = 64 * BLOCK  # limit of the text in flight; a single larger block is allowed


def encode_blocks(
    blocks: Iterable[Block], encoder: BlockEncoder, count: int
) -> Iterator[tuple[Block, Encoded]]:
    """Yield each block, without its text, and its encoding; few blocks are in memory at once.

    Args:
        count: blocks that are encoded at the same time.

    Raises:
        ValueError: see `BlockEncoder.encode`.
    """
    pending: deque[tuple[Block, int, Future[Encoded]]] = deque()
    in_flight = 0
    with _serial_library(), ThreadPoolExecutor(count, thread_name_prefix="tokenize") as threads:
        try:
            for block in blocks:
                while pending and (len(pending) >= _AHEAD * count or in_flight + block.size > _MAX_BYTES):
                    first, size, future = pending.popleft()
                    in_flight -= size
                    yield first, future.result()
                in_flight += block.size
                future = threads.submit(encoder.encode, block.items)
                block.items = []
                pending.append((block, block.size, future))
            while pending:
                first, _, future = pending.popleft()
                yield first, future.result()
        finally:
            threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _serial_library() -> Iterator[None]:
    """Let a call of the tokenizers library use one core, instead of all."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
