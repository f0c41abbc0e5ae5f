"""``based-jax serve``: one process, its signals, and what it says when it cannot serve."""

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from based_jax.convert import save_pretrained
from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate.engine import Engine
from based_jax.generate.engine.slots import Slots
from based_jax.serve import __main__ as cli
from tests.commands import refused
from tests.serve.client import Client, slowly


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "tiny"
    save_pretrained(path, *model)
    ByteTokenizer().save(path)
    return path


@pytest.fixture
def serve(server, directory, monkeypatch) -> Callable[[Callable[[Client], None]], int]:
    """Run the command in this thread, which gets the signals, and a visitor in another; the status.

    After another server: what the first one imports must not take the streams of a test that captures them.
    """

    def call(visit: Callable[[Client], None]) -> int:
        url, visitors = cli.url, []

        def started(listener):
            client = Client(listener.getsockname()[1])

            def come():
                try:
                    client.wait_until_up()
                    visit(client)
                except BaseException:
                    os.kill(os.getpid(), signal.SIGTERM)
                    raise

            visitors.append(threading.Thread(target=come))
            visitors[0].start()
            return url(listener)

        monkeypatch.setattr(cli, "url", started)
        monkeypatch.setattr(cli, "Engine", lambda *args, **options: slowly(Engine(*args, **options)))
        flags = ("--checkpoint", str(directory), "--port", "0", "--slots", "2", "--max-length", "2048")
        try:
            return cli.main(flags)
        finally:
            visitors[0].join(60)

    return call


@pytest.mark.release
def test_serves_until_it_gets_a_signal(serve, client, capsys, monkeypatch):
    """The answer that is being made when the signal comes, and its echo, is finished; the status is 0."""
    monkeypatch.setattr("based_jax.serve.app.ECHO", 1e9)
    texts: list[str] = []
    before = signal.getsignal(signal.SIGTERM)

    def visit(other):
        texts.append(other.text(prompt="def", max_tokens=20))
        asking = threading.Thread(target=lambda: texts.append(other.text(prompt="a", max_tokens=800)))
        asking.start()
        other.wait_for("engine_running", 1)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        asking.join(60)

    assert serve(visit) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"tiny: http://127\.0\.0\.1:\d+/\n", out)
    assert err == "compiling\n"
    assert texts == [client.text(prompt="def", max_tokens=20), client.text(prompt="a", max_tokens=800)]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.release
def test_a_failing_engine_ends_the_process(serve, monkeypatch, capsys, caplog):
    def visit(other):
        monkeypatch.setattr(Slots, "insert", fail)
        assert other.error({}, 500)["code"] == "engine_failed"

    def fail(*args):
        raise RuntimeError("device lost")

    with pytest.raises(SystemExit) as ended:
        serve(visit)
    assert ended.value.code == 1
    assert capsys.readouterr().err.endswith(f"{cli.PROG}: the engine failed: device lost\n")
    assert "device lost" in caplog.text


@pytest.fixture
def fails(capsys):
    return lambda *argv: refused(cli.PROG, cli.main, argv, capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--wrong",), "--wrong"),
        (("--checkpoint", "nowhere/at/all"), "nowhere/at/all"),
        (("--port", "70000"), "port = 70000: expected an integer in [0, 65536)"),
        (("--slots", "0"), "slots = 0: expected an integer, at least 1"),
        (("--max-waiting", "0"), "max_waiting = 0: expected"),
        (("--max-length", "1"), "max_length = 1: expected"),
        (("--allowed-hosts", "a.example", "http://b"), "allowed_hosts = 'http://b': expected a host name"),
        (("--model-name", "a\udcff"), "model_name = 'a\\udcff': expected printable text"),
        (("--allowed-hosts", "a.*"), "allowed_hosts = 'a.*': expected a host name"),
        (("--prefix-cache-mib", "-1"), "prefix_cache_mib = -1.0: expected"),
        (("--timeout", "0"), "timeout = 0.0: expected a number of seconds above 0"),
        (("--host", "not a host"), "host = 'not a host', port = 8000: "),
        (("--host", "192.0.2.1"), "host = '192.0.2.1', port = 8000: "),
        (("--dtype", "float99"), "float99"),
        (("--dtype", "float64"), "dtype = 'float64': expected another one, or JAX_ENABLE_X64=1"),
        (("--tokenizer", "none.json"), "none.json"),
        (("--api-key-file", "nowhere"), "nowhere"),
        (("--api-key-file", os.devnull), "expected a file with at least one key"),
        (("--api-key-file", sys.executable), ": expected a file in UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(fails, directory, flags, message):
    assert message in fails("--checkpoint", directory, *flags)


def test_a_port_that_is_taken(fails, directory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port = {port}: Address already in use" in fails("--checkpoint", directory, "--port", port)


def test_a_missing_package(fails, directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    message = fails("--checkpoint", directory)
    assert "expected the package 'starlette' to be installed" in message
    assert "pip install 'based-jax[serve]'" in message


def test_addresses():
    for host, shown in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")):
        try:
            with cli.bind(host, 0) as listener:
                assert cli.url(listener) == f"http://{shown}:{listener.getsockname()[1]}/"
        except OSError:
            assert host == "::1"  # a machine without IPv6


def test_keys(tmp_path):
    (tmp_path / "keys").write_text("one\n\n two \n")
    assert cli.read_keys(tmp_path / "keys") == ("one", "two")
