"""Many clients of a running server, good and bad: ``python -m tests.serve.load --port N --pid N``.

Every answer that a good client gets must be the one that an idle server gave.
"""

import argparse
import asyncio
import collections
import dataclasses
import json
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tests.serve.client import HEAD, Client, post_bytes

LARGE = 5 * 2**20  # bytes of a body that is too large


@dataclasses.dataclass
class Report:
    """What happened."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """good answers, refusals as they had to be, and whatever else"""
    seconds: list[float] = dataclasses.field(default_factory=list)
    """of good requests, from connecting to the last byte, without those that were asked to come again"""
    wrong: list[str] = dataclasses.field(default_factory=list)
    elapsed: float = 0.0
    rss: list[int] = dataclasses.field(default_factory=list)
    """KiB of the server, now and then"""

    def lines(self) -> list[str]:
        ordered = sorted(self.seconds)
        good = len(ordered)
        middle, late = (1000 * ordered[int(share * (good - 1))] for share in (0.5, 0.99))
        return [
            f"{dict(self.counts.most_common())}",
            f"{good / self.elapsed:.0f} good answers/s in {self.elapsed:.0f} s",
            f"latency of good answers: p50 {middle:.0f} ms, p99 {late:.0f} ms",
            f"resident memory: {' '.join(f'{size / 1024:.0f}' for size in self.rss)} MiB",
            f"{len(self.wrong)} wrong: {self.wrong[:3]}",
        ]


class Crowd:
    """Clients of one server.

    Args:
        port: on loopback.
        pid: the server's process, whose memory is looked at.
        total: clients in all.
        at_once: clients at the same time.
    """

    def __init__(self, port: int, pid: int, total: int, at_once: int, seed: int = 0) -> None:
        self.port, self.pid, self.total, self.at_once = port, pid, total, at_once
        self.random = random.Random(seed)
        self.report = Report()
        self.bodies = [self._body() for _ in range(60)]
        client = Client(port)
        self.expected = [client.complete(**body)["choices"] for body in self.bodies]  # one after the other

    def run(self) -> Report:
        """Let them all come."""
        asyncio.run(self._run())
        Client(self.port).wait_until_empty()
        self.report.rss.append(self._rss())
        return self.report

    async def _run(self) -> None:
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._good, 60),
            (self._malformed, 10),
            (self._oversized, 3),
            (self._slow_head, 5),
            (self._slow_body, 7),
            (self._leaving, 10),
            (self._not_reading, 5),
        ]
        clients = self.random.choices(
            [kind for kind, _ in kinds], [share for _, share in kinds], k=self.total
        )
        begin = time.monotonic()
        left = iter(enumerate(clients))

        async def visitor() -> None:
            for number, client in left:
                if number % max(1, self.total // 8) == 0:
                    self.report.rss.append(self._rss())
                try:
                    await client()
                except (OSError, asyncio.IncompleteReadError, AssertionError) as error:
                    self.report.wrong.append(f"{client.__name__}: {type(error).__name__} {error}"[:300])

        await asyncio.gather(*(visitor() for _ in range(self.at_once)))
        self.report.elapsed = time.monotonic() - begin

    def _body(self) -> dict[str, Any]:
        letters = "".join(self.random.choices("abcdefgh ()\n=é", k=self.random.randrange(0, 120)))
        return {"prompt": letters, "max_tokens": self.random.randrange(1, 60), "temperature": 0}

    async def _good(self) -> None:
        number = self.random.randrange(len(self.bodies))
        stream = self.random.random() < 0.5
        body, expected = {**self.bodies[number], "stream": stream}, self.expected[number]
        for _ in range(1000):
            begin = time.monotonic()
            status, answer = await self._ask(post_bytes(body))
            if status == 429:
                self.report.counts["come again"] += 1
                await asyncio.sleep(self.random.uniform(0.2, 1))
                continue
            assert status == 200, (status, answer[-300:])
            if stream:
                *events, done = answer.decode().split("\n\n")[:-1]
                assert done == "data: [DONE]"
                chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
                text = "".join(chunk["text"] for chunk in chunks)
                assert (text, chunks[-1]["finish_reason"]) == (
                    expected[0]["text"],
                    expected[0]["finish_reason"],
                )
            else:
                assert json.loads(answer)["choices"] == expected
            self.report.seconds.append(time.monotonic() - begin)
            self.report.counts["good"] += 1
            return
        raise AssertionError("never answered")

    async def _malformed(self) -> None:
        wrong = [
            b"{",
            b'{"prompt": 3}',
            b'{"unknown": 1}',
            b"[]",
            b"\xff\xfe",
            b'{"max_tokens": -1}',
            b'{"n": NaN}',
        ]
        body = self.random.choice(wrong)
        request = HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body
        status, _ = await self._ask(self.random.choice([request, b"\x00\x01 not http at all\r\n\r\n"]))
        assert status == 400, status
        self.report.counts["malformed"] += 1

    async def _oversized(self) -> None:
        status, _ = await self._ask(post_bytes({"prompt": "a" * LARGE}))
        assert status == 413, status
        self.report.counts["oversized"] += 1

    async def _slow_head(self) -> None:
        reader, writer = await self._connect()
        try:
            for byte in b"POST /v1/completions HTTP/1.1\r\nhost: a":
                writer.write(bytes([byte]))
                await writer.drain()
                if await self._closes(reader, 0.5):
                    break
            assert await self._closes(reader, 30)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
        self.report.counts["slow head"] += 1

    async def _slow_body(self) -> None:
        """Slow, but in time: it is answered as the others are."""
        number = self.random.randrange(len(self.bodies))
        data = post_bytes(self.bodies[number])
        reader, writer = await self._connect()
        try:
            for begin in range(0, len(data), 40):
                writer.write(data[begin : begin + 40])
                await writer.drain()
                await asyncio.sleep(0.2)
            status, answer = await self._answer(reader)
        finally:
            writer.transport.abort()
        assert status in (200, 429), status
        if status == 200:
            assert json.loads(answer)["choices"] == self.expected[number]
        self.report.counts["slow body"] += 1

    async def _leaving(self) -> None:
        reader, writer = await self._connect()
        stream = self.random.random() < 0.5
        writer.write(post_bytes({"prompt": "a", "max_tokens": 1500, "stream": stream}))
        await writer.drain()
        if stream and self.random.random() < 0.8:
            await reader.read(100)
        else:
            await asyncio.sleep(self.random.uniform(0, 0.3))
        writer.transport.abort()
        self.report.counts["left"] += 1

    async def _not_reading(self) -> None:
        _, writer = await self._connect(limit=1024)
        writer.transport.pause_reading()
        writer.write(post_bytes({"prompt": "a", "max_tokens": 1500, "stream": True, "logprobs": 5}))
        await writer.drain()
        await asyncio.sleep(self.random.uniform(1, 5))
        writer.transport.abort()
        self.report.counts["did not read"] += 1

    async def _ask(self, data: bytes) -> tuple[int, bytes]:
        reader, writer = await self._connect()
        try:
            writer.write(data)
            await writer.drain()
            return await self._answer(reader)
        finally:
            writer.transport.abort()

    async def _connect(self, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=limit)

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Status and body of a response."""
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            if b"content-length" in headers:
                return status, await reader.readexactly(int(headers[b"content-length"]))
            if b"transfer-encoding" not in headers:
                return status, await reader.read()
            body = b""
            while size := int((await reader.readline()).strip(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            return status, body

    async def _closes(self, reader: asyncio.StreamReader, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await reader.read(1) == b""
        except TimeoutError:
            return False

    def _rss(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=200)
    flags = parser.parse_args()
    print(*Crowd(flags.port, flags.pid, flags.clients, flags.at_once).run().lines(), sep="\n")
