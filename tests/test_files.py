"""Small files: what is read, and what is refused before it fills memory or the stack."""

import errno
import os

import pytest

from based_jax import files

DEEP = files.MAX_DEPTH


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "more than 64 levels"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "more than 64 levels"),
        (b'{"a": 1, "\\u0061": 2}', "the key 'a' is there twice"),
        (b"{", "expected JSON"),
        (b"1" * 5000, "expected JSON"),
        (b"\xff", "expected UTF-8 text"),
    ],
)
def test_refused_json(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path}: .*{message}"):
        files.read_json(path)


def test_what_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" * DEEP + "]" * DEEP)
    assert str(files.read_json(path)) == "[" * DEEP + "]" * DEEP
    path.write_text('{"a": {"a": [1, "é"]}}\n\n[2]\n')
    assert files.read_json_lines(path) == [{"a": {"a": [1, "é"]}}, [2]]
    path.write_text("a = 1\n[b]\nc = 2")
    assert files.read_toml(path) == {"a": 1, "b": {"c": 2}}
    path.write_text("a = " + "[" * DEEP + "]" * DEEP)
    with pytest.raises(ValueError, match=rf"^{path}: more than 64 levels"):
        files.read_toml(path)


def test_a_byte_order_mark_is_not_content(tmp_path):
    path = tmp_path / "a"
    for read, content, value in [
        (files.read_text, "a\ufeff", "a\ufeff"),
        (files.read_json, '{"a": 1}', {"a": 1}),
        (files.read_json_lines, "[1]\n[2]", [[1], [2]]),
        (files.read_toml, "a = 1", {"a": 1}),
    ]:
        path.write_text(content, encoding="utf-8-sig")
        assert read(path) == value


def test_large_and_special_files(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"[1]")
    os.truncate(path, 3 << 30)  # sparse
    with pytest.raises(ValueError, match=rf"^{path}: 3221225472 bytes, expected at most 8388608"):
        files.read_json(path)
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
    for special in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="expected a regular file"):
            files.read_text(special)
    with pytest.raises(FileNotFoundError):
        files.read_text(tmp_path / "none")


def test_a_full_disk_names_the_file(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")  # as a write raises it
    with (
        pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"),
        files.whole_file(tmp_path / "a"),
    ):
        raise full
    assert not [*tmp_path.iterdir()]
