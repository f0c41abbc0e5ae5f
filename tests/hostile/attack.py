"""What an attack is, and how its end counts; a process that runs a class."""

import importlib
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

REFUSALS = (ValueError, TypeError, OSError, ImportError)
"""Errors that the library promises for bad input."""


@dataclass(frozen=True)
class Attack:
    """One hostile input.

    A class of attacks is a module of this package with a function ``attacks(rng, count)`` that yields `count`
    of them, the same ones for the same state of `rng`, and the first line of whose docstring says what is
    attacked. `SECONDS` and `MEBIBYTES` of the module bound one attack.
    """

    what: str
    """in one line, enough to make it again"""
    run: Callable[[], None]
    """Returns if the input was survived, raises one of `REFUSALS` if it was refused, and AssertionError if it
    was taken for something else than it is: a wrong number, a file outside, code that ran"""


def outcome(attack: Attack) -> tuple[str, str]:
    """Run it here: "survived", "refused" or "FAILED", and why."""
    try:
        attack.run()
    except REFUSALS as error:
        return "refused", f"{type(error).__name__}: {error}"
    except (Exception, SystemExit) as error:  # whatever else it is, it is what we look for
        return "FAILED", f"{type(error).__name__}: {error}"
    return "survived", ""


def serve(name: str, seed: int, count: int, skip: int, results: Connection) -> None:
    """Run a class from attack `skip` on; sends (number, what) before each and (outcome, why, MiB) after."""
    module = importlib.import_module(f"tests.hostile.{name}")
    for number, attack in enumerate(module.attacks(np.random.default_rng(seed), count)):
        if number < skip:
            continue
        before = _peak()
        results.send((number, attack.what))
        results.send((*outcome(attack), _peak() - before))
    results.send(None)


def _peak() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
