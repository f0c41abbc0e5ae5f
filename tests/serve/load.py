"""Many clients of a running server: ``python -m tests.serve.load --port N --pid N``.

Every answer that a good client gets must be the one that an idle server gave.
"""

import argparse
import collections
import dataclasses
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.serve.client import Client, post_bytes, read_events

WRONG = (b"{", b'{"prompt": 3}', b'{"unknown": 1}', b"[]", b"\xff\xfe", b'{"max_tokens": -1}', b'{"n": NaN}')


@dataclasses.dataclass
class Report:
    """Counts by kind, wrong answers, seconds of good ones, and KiB of the server before and after."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    rss: list[int] = dataclasses.field(default_factory=list)
    elapsed: float = 0.0

    def lines(self) -> list[str]:
        ordered = sorted(self.seconds)
        middle, late = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        return [
            f"{dict(self.counts.most_common())}, {len(self.wrong)} wrong: {self.wrong[:3]}",
            f"{len(ordered) / self.elapsed:.1f} good answers/s in {self.elapsed:.0f} s",
            f"latency of good answers: p50 {middle:.0f} ms, p99 {late:.0f} ms",
            f"resident memory: {' '.join(f'{size / 1024:.0f}' for size in self.rss)} MiB",
        ]


class Crowd:
    """Clients of one server on loopback, `at_once` at a time; `pid` is the process whose memory is read."""

    def __init__(self, port: int, pid: int, total: int, at_once: int, seed: int = 0) -> None:
        self.client, self.pid, self.total, self.at_once = Client(port), pid, total, at_once
        self.random, self.report = random.Random(seed), Report()
        self.bodies = [self._body() for _ in range(60)]
        self.expected = [self.client.complete(**body)["choices"][0] for body in self.bodies]

    def run(self) -> Report:
        """Let them all come."""
        kinds = {self._good: 75, self._malformed: 10, self._oversized: 3, self._leaving: 12}
        clients = self.random.choices(list(kinds), list(kinds.values()), k=self.total)
        self.report.rss.append(self._rss())
        begin = time.monotonic()
        with ThreadPoolExecutor(self.at_once) as threads:
            list(threads.map(self._come, clients))
        self.report.elapsed = time.monotonic() - begin
        self.client.wait_until_empty()
        self.report.rss.append(self._rss())
        return self.report

    def _come(self, kind: Callable[[], None]) -> None:
        try:
            kind()
            self.report.counts[kind.__name__.strip("_")] += 1
        except (OSError, AssertionError) as error:
            self.report.wrong.append(f"{kind.__name__}: {type(error).__name__} {error}"[:300])

    def _body(self) -> dict[str, Any]:
        letters = "".join(self.random.choices("abcdefgh ()\n=é", k=self.random.randrange(0, 120)))
        return {"prompt": letters, "max_tokens": self.random.randrange(1, 60), "temperature": 0}

    def _good(self) -> None:
        number, stream = self.random.randrange(len(self.bodies)), self.random.random() < 0.5
        for _ in range(1000):
            begin = time.monotonic()
            response = self.client.send("POST", "/v1/completions", {**self.bodies[number], "stream": stream})
            if response.status != 429:
                break
            self.report.counts["come again"] += 1
            time.sleep(self.random.uniform(0.2, 1))
        assert response.status == 200, (response.status, response.all)
        answers = read_events(response.all.decode()) if stream else [json.loads(response.all)]
        choices = [answer["choices"][0] for answer in answers]
        found = "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]
        assert found == (self.expected[number]["text"], self.expected[number]["finish_reason"])
        self.report.seconds.append(time.monotonic() - begin)

    def _malformed(self) -> None:
        self.client.error(self.random.choice(WRONG), 400)

    def _oversized(self) -> None:
        self.client.error({"prompt": "a" * 5 * 2**20}, 413)

    def _leaving(self) -> None:
        asked = {"prompt": "a", "max_tokens": 1500, "stream": self.random.random() < 0.5}
        with self.client.raw(post_bytes(asked)):
            time.sleep(self.random.uniform(0, 0.5))

    def _rss(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=100)
    flags = parser.parse_args()
    print(*Crowd(flags.port, flags.pid, flags.clients, flags.at_once).run().lines(), sep="\n")
