"""Read the fields that completions and chat completions share, and refuse wrong ones.

Names, meanings and defaults are OpenAI's; `top_k`, `min_p` and `repetition_penalty` are added, as in other
servers.
"""

import dataclasses
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from based_jax.generate.logit_bias import MAX_BIASED, LogitBias
from based_jax.generate.sampling import Sampler
from based_jax.serve.body import parse, shorten
from based_jax.serve.errors import Refusal
from based_jax.serve.limits import Limits

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
TOO_LONG = "context_length_exceeded"
SAMPLER = tuple(field.name for field in dataclasses.fields(Sampler))

_ALL = {"top_k": (-1, 0), "min_p": (0,)}  # values by which clients of other servers disable them
_IGNORED = ("user",)
_TOKEN = re.compile("0|[1-9][0-9]{0,9}")  # as a name in JSON, in canonical form


def read_fields(
    body: bytes, known: Sequence[str], refused: Mapping[str, str], neutral: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Return the fields of a body that ask for something; a Refusal (status 400) names an unknown one.

    Args:
        refused: fields of OpenAI's API that are not served -> why.
        neutral: fields -> values by which they ask for nothing, as null does.
    """
    fields = {
        name: value
        for name, value in parse(body).items()
        if value is not None and value not in neutral.get(name, ())
    }
    for name in fields:
        if name in refused:
            refuse(name, f"{name} is not supported: {refused[name]}")
        if name not in (*known, *_IGNORED):
            param = name if name.isidentifier() and len(name) <= 60 else None
            refuse(param, f"unknown field {shorten(name)}: expected one of {', '.join(known)}")
    return fields


def read_sampler(fields: Mapping[str, Any]) -> Sampler:
    names = (name for name in SAMPLER if name in fields and name != "logit_bias")
    given = {"temperature": 1.0, **{name: fields[name] for name in names}}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(name, f"{name} = {shorten(value)}: expected a number")
    given = {name: value for name, value in given.items() if value not in _ALL.get(name, ())}
    biases = _logit_bias(fields.get("logit_bias"))
    try:
        return Sampler(**given, logit_bias=biases)
    except ValueError as error:
        name, expected = str(error).partition(" = ")[0], str(error).partition(": ")[2]
        refuse(name, f"{name} = {shorten(given[name])}: {expected}")


def read_stop(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop", ())
    stops = (value,) if isinstance(value, str) else value
    good = isinstance(stops, list | tuple) and len(stops) <= MAX_STOPS
    if not good or not all(map(_is_stop, stops)):
        refuse("stop", f"stop: expected at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(stops)


def read_seed(fields: Mapping[str, Any]) -> int:
    return read_integer(fields, "seed", secrets.randbits(31), -(2**63), 2**63 - 1)


def read_include_usage(fields: Mapping[str, Any]) -> bool:
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or not set(options) <= {"include_usage"}:
        refuse("stream_options", "stream_options: expected an object with include_usage alone")
    if options and fields.get("stream") is not True:
        refuse("stream_options", "stream_options: expected only with stream = true")
    return read_typed(options, "include_usage", bool, False, "true or false")


def read_integer(
    fields: Mapping[str, Any], name: str, default: Any, least: int, most: int | None = None
) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        refuse(name, f"{name} = {shorten(value)}: expected an integer, {bounds}")
    return value


def read_typed(fields: Mapping[str, Any], name: str, kind: type, default: Any, expected: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        refuse(name, f"{name} = {shorten(value)}: expected {expected}")
    return default if value is None else value


def expect_served(name: str, count: int, prompts: int, max_tokens: int, limits: Limits) -> None:
    """Refuse more answers to one request, or more tokens of one, than the server makes.

    Args:
        name: the field with the number of answers per prompt.
    """
    if prompts * count > limits.choices:
        given = f"{prompts} prompts times {name} = {shorten(count)}"
        refuse(name, f"{given}: at most {limits.choices} answers")
    if max_tokens > limits.max_tokens:
        given = f"max_tokens = {shorten(max_tokens)}"
        refuse("max_tokens", f"{given}: expected at most {limits.max_tokens}")


def expect_biases_known(sampler: Sampler, vocab_size: int) -> None:
    """Refuse biases of tokens that the model does not have."""
    for token in sampler.logit_bias or ():
        if token >= vocab_size:
            refuse("logit_bias", f"logit_bias = {token}: expected tokens in [0, {vocab_size})")


def refuse(param: str | None, message: str, code: str | None = None) -> NoReturn:
    raise Refusal(400, message, param=param, code=code)


def _logit_bias(value: Any) -> LogitBias | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(map(_TOKEN.fullmatch, value)):
        refuse("logit_bias", f"logit_bias: expected an object of up to {MAX_BIASED} tokens and numbers")
    try:
        return LogitBias({int(token): bias for token, bias in value.items()})
    except ValueError as error:
        given, _, expected = str(error).partition(": ")
        refuse("logit_bias", f"logit_bias = {shorten(given.partition(' = ')[2])}: {expected}")


def _is_stop(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_LENGTH:
        return False
    # JSON can encode halves of characters, which no answer contains.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)
