"""One tiny byte-level model and one server of it for all tests."""

from collections.abc import Iterator

import pytest

from based_jax.generate.engine import Engine
from based_jax.serve.fields import Limits
from tests.generate.tiny import make_bytes
from tests.serve.client import Client, serving

LIMITS = Limits(length=300_000, max_tokens=200_000, choices=16, body=20_000)


@pytest.fixture(scope="session")
def model():
    return make_bytes()


@pytest.fixture(scope="session")
def make_engine(model):
    """An engine whose programs are the same in every test."""
    return lambda **options: Engine(*model, **{"slots": 2, "max_waiting": 16, **options})


@pytest.fixture(scope="session")
def server(make_engine) -> Iterator[Client]:
    with serving(make_engine(), LIMITS) as client:
        yield client


@pytest.fixture
def client(server) -> Iterator[Client]:
    """The server, which every test leaves empty."""
    yield server
    server.wait_until_empty()
