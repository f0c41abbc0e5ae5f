"""Names that other packages add to the library's: by a decorator, or by an entry point, without an import."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Generic, TypeVar

import jax

from based_jax.validate import expect, nearest, shown

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_FORM = "lower-case letters, digits and underscores, beginning with a letter"

_CACHES: list[Any] = []


def cached(maxsize: int) -> Callable[[F], F]:
    """Apply `functools.lru_cache` to a function whose results depend on what registered names stand for."""

    def decorate(function: F) -> F:
        found: Any = functools.lru_cache(maxsize)(function)
        _CACHES.append(found)
        return found

    return decorate


def _forget() -> None:
    """Drop results and compiled programs made from a definition that a name no longer stands for."""
    jax.clear_caches()
    for each in _CACHES:
        each.cache_clear()


@dataclass
class Registry(Generic[T]):
    """What has names of one kind."""

    kind: str
    """in messages"""
    group: str
    """of the entry points by which installed packages declare it"""
    accept: Callable[[str, Any], T]
    """maps a name and what is registered to the entry, or raises TypeError"""
    entries: dict[str, T] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """where each entry was defined"""

    def register(self, name: str) -> Callable[[Any], Any]:
        """Return a decorator that adds a name; one definition may be registered again after a change.

        Programs that JAX has compiled are dropped then: a model has the name, not the definition.

        Raises:
            TypeError: what is registered is not of this kind.
            ValueError: a name of another form, or one already taken by another definition.
        """
        expect(
            isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name) is not None, "name", name, _FORM
        )

        def add(given: Any) -> Any:
            entry = self.accept(name, given)
            is_named = hasattr(given, "__qualname__")
            origin = f"{given.__module__}.{given.__qualname__}" if is_named else shown(given)
            taken = self.origins.get(name, "based_jax") if name in self.entries else origin
            expect(taken == origin, "name", name, f"a name that {taken} does not have")
            is_changed = self.entries.get(name, entry) is not entry
            self.entries[name], self.origins[name] = entry, origin
            if is_changed:
                _forget()
            return given

        return add

    @functools.cached_property
    def installed(self) -> dict[str, metadata.EntryPoint]:
        """The entry points by name, without importing them."""
        return {point.name: point for point in metadata.entry_points(group=self.group)}

    def names(self) -> tuple[str, ...]:
        """Return all names: built in, registered, or from installed packages."""
        return tuple({**self.entries, **self.installed})

    def find(self, name: str) -> T:
        """Return an entry.

        Raises:
            ValueError: unknown name, or an installed package whose entry cannot be imported.
        """
        known = self.names()
        listed = ", ".join(map(repr, known))
        end = f", or install the package that provides it{nearest(name, known)}"
        expect(name in known, self.kind, name, f"one of {listed}{end}")
        if name not in self.entries:
            point = self.installed[name]
            try:
                given = point.load()
            except (ImportError, AttributeError) as error:
                message = f"{self.kind} = {name!r}: cannot import {point.value}: {error}"
                raise ValueError(message) from error
            self.register(name)(given)
        return self.entries[name]
