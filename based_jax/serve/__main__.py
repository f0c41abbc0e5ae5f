"""Serve a language model over HTTP: ``based-jax serve --checkpoint DIR``."""

import contextlib
import dataclasses
import functools
import ipaddress
import logging
import math
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import jax

from based_jax import command
from based_jax.convert.pretrained import find_directory, find_tokenizer, load_pretrained
from based_jax.data.chat.template import Chat, ChatTemplate
from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine import Engine
from based_jax.generate.prefix import PrefixCache
from based_jax.generate.weights import decoding_weights
from based_jax.imports import import_optional
from based_jax.phases import phase
from based_jax.validate import expect

logger = logging.getLogger(__name__)

PROG = "based-jax serve"

PACKAGES = ("msgspec", "prometheus_client", "starlette", "uvicorn")


@dataclasses.dataclass(frozen=True)
class Options:
    """Serve OpenAI's completions API.

    Prints its address when it accepts requests. Ctrl-C or SIGTERM finishes the answers in progress.
    """

    checkpoint: str
    """pretrained directory (config.json, weights, tokenizer), a run's directory, or a hub id"""
    host: str = "127.0.0.1"
    """address to listen on; the default serves this machine only"""
    port: int = 8000
    """port to listen on; 0 takes a free one"""
    slots: int = 16
    """number of answers that are generated at the same time"""
    max_waiting: int = 256
    """number of requests that may wait for a slot; more are refused (429)"""
    max_length: int = 4096
    """most tokens of a prompt and its answer together"""
    max_tokens_limit: int = 2048
    """most tokens of an answer"""
    allowed_hosts: tuple[str, ...] = ()
    """names by which clients may call the server besides localhost, IP addresses and --host: a proxy's, or
    this machine's in its network; *.example.com is every name with that ending, * is any"""
    timeout: float = 600.0
    """seconds for a whole answer, waiting included"""
    drain_timeout: int = 30
    """seconds for the answers in progress after a request to stop the server"""
    max_connections: int = 1000
    """open connections; more are refused (503)"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory,
    instead of the checkpoint's own"""
    dtype: str | None = None
    """dtype of the computation, such as bfloat16, instead of the checkpoint's own"""
    prefix_cache_mib: float = 64.0
    """memory for states after beginnings of prompts, so that shared ones are read once; 0 is none"""
    model_name: str | None = None
    """name by which clients call the model; default: the last component of --checkpoint"""
    api_key_file: str | None = None
    """file with an API key per line; clients of /v1 must then send one of them"""


def main(argv: Sequence[str] | None = None) -> int:
    options = command.parse(Options, argv, prog=PROG)
    _check(options)
    for package in PACKAGES:
        import_optional(package, "serve", options.checkpoint, "serve")
    from based_jax.serve.app import Server, Service
    from based_jax.serve.fields import MAX_LOGPROBS, Limits
    from based_jax.serve.worker import Worker

    keys = read_keys(Path(options.api_key_file)) if options.api_key_file is not None else ()
    directory = find_directory(options.checkpoint)
    name = options.model_name or Path(options.checkpoint).name or directory.resolve().name
    expect(name.isprintable(), "model_name", name, "printable text")
    with bind(options.host, options.port) as listener:  # a wrong address is reported before loading anything
        with phase("reading the weights"):
            model, params = load_pretrained(directory, dtype=options.dtype)
            if model.config.dtype in ("bfloat16", "float16"):  # cast once, not at every step
                model, params = decoding_weights(model, params, model.config.dtype)
        vocab_size = model.config.vocab_size
        tokenizer = find_tokenizer(directory, options.tokenizer, vocab_size)
        size, cache = tokenizer.vocab_size, round(options.prefix_cache_mib * 2**20)
        expect(size <= vocab_size, "tokenizer.vocab_size", size, f"at most {vocab_size}")
        with phase("compiling", patience=0):
            engine = Engine(
                model,
                params,
                slots=options.slots,
                max_length=options.max_length,
                max_waiting=options.max_waiting,
                top_logprobs=min(MAX_LOGPROBS, vocab_size),
                prefix_cache=PrefixCache(cache) if cache else None,
            )
            engine.warm_up()
        worker = Worker(engine)
        hosts = (options.host, *options.allowed_hosts)
        length = min(options.max_length, engine.limit or options.max_length)
        limits = Limits(
            length=length,
            max_tokens=min(options.max_tokens_limit, length - 1),
            choices=min(options.max_waiting, 128),
            answer_seconds=options.timeout,
        )
        chat = find_chat(directory, tokenizer)
        service = Service(worker, tokenizer, vocab_size, name, limits, keys, hosts, chat)
        address = url(listener)
        ready = functools.partial(print, f"{name}: {address}", flush=True)
        server = Server(service, ready, options.max_connections, options.drain_timeout)
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal that stopped it again
                server.run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, before)
    if worker.failure is not None:
        command.fail(PROG, f"the engine failed: {worker.failure}", status=1)
    return 0


def _check(options: Options) -> None:
    """Check the options before anything is loaded."""
    expect(0 <= options.port < 2**16, "port", options.port, "an integer in [0, 65536)")
    least = dict.fromkeys(("slots", "max_waiting", "max_tokens_limit", "max_connections"), 1)
    for name, low in (least | {"max_length": 2}).items():
        expect(getattr(options, name) >= low, name, getattr(options, name), f"an integer, at least {low}")
    mib = options.prefix_cache_mib
    expect(math.isfinite(mib) and mib >= 0, "prefix_cache_mib", mib, "a number, at least 0")
    for name in options.allowed_hosts:
        label = "any" if name == "*" else name.removeprefix("*.")
        good = bool(label) and not set(label) & set("*/:@ ")
        expect(good, "allowed_hosts", name, "a host name without scheme and port, *.NAME, or * for any")
    exists = options.dtype != "float64" or jax.dtypes.canonicalize_dtype("float64").itemsize == 8
    expect(exists, "dtype", options.dtype, "another one, or JAX_ENABLE_X64=1")
    for name in ("timeout", "drain_timeout"):
        value = getattr(options, name)
        expect(0 < value <= 1e9, name, value, "a number of seconds above 0, at most 1e9")


def find_chat(directory: Path, tokenizer: Tokenizer) -> Chat | str:
    """Return the model's chat template, or why it has none: the other routes are served all the same."""
    from based_jax.serve.app import NO_CHAT

    try:
        template = ChatTemplate.read(directory)
        return NO_CHAT if template is None else Chat(template, tokenizer)
    except (ImportError, ValueError, OSError) as error:
        reason = f"this server has no chat completions: {error}"
        logger.warning("%s", reason)
        return reason


def read_keys(path: Path) -> tuple[str, ...]:
    """Read the keys of a file, one per line, ignoring empty lines; at least one."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"api_key_file = {str(path)!r}: expected a file in UTF-8") from error
    keys = tuple(filter(None, map(str.strip, lines)))
    expect(bool(keys), "api_key_file", str(path), "a file with at least one key")
    return keys


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket without listening; OSError: the address is taken, invalid or not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as on_error:
            listener = on_error.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # other systems would share the port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            on_error.pop_all()
    except OSError as error:
        raise OSError(f"host = {host!r}, port = {port}: {error.strerror or error}") from error
    return listener


def url(listener: socket.socket) -> str:
    """Return the server's URL."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    return f"http://{host}:{port}/"


if __name__ == "__main__":
    command.run(PROG, main)
