"""Files are read within bounds, and written completely or not at all."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model import files
from asgd_model.errors import InputError

COMPRESSED = gzip.compress(bytes(range(256)) * 50)

json_documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refused(path: Path, read: Any = files.read_bytes, **options: Any) -> str:
    """The message with which reading a file is refused, without the path that it begins with."""
    with pytest.raises(InputError) as caught:
        read(path, **options)
    assert str(caught.value).startswith(f"{path}: found ")
    return str(caught.value).removeprefix(f"{path}: ")


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_plain_and_gzip_are_read_alike(tmp_path: Path, compress: Any) -> None:
    """Compression is seen from the content, whatever the name says."""
    path = tmp_path / "any.name"
    path.write_bytes(compress(b"content"))
    assert files.read_bytes(path) == b"content"
    assert files.read_bytes(str(path)) == b"content"


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_size_is_bounded_after_decompression(tmp_path: Path, compress: Any) -> None:
    """A small file that decompresses to a large one is refused; the limit itself is allowed."""
    path = tmp_path / "large"
    path.write_bytes(compress(b"x" * 1000))
    assert len(files.read_bytes(path, max_bytes=1000)) == 1000
    message = refused(path, max_bytes=999)
    assert message == "found more than 999 bytes; expected at most 999 bytes"


@pytest.mark.parametrize(
    ("content", "found", "expected"),
    [
        (b"", "an empty file", "content"),
        (gzip.compress(b""), "an empty file", "content"),
        (COMPRESSED[:2], "damaged gzip data", "a complete gzip file"),
        (COMPRESSED[:-20], "damaged gzip data", "a complete gzip file"),
        (COMPRESSED[:-8] + bytes(8), "damaged gzip data", "a complete gzip file"),
        (COMPRESSED[:10] + b"\xff" + COMPRESSED[11:], "damaged gzip data", "a complete gzip file"),
        (COMPRESSED + b"more", "damaged gzip data", "a complete gzip file"),
    ],
    ids=["empty", "empty gzip", "two bytes", "truncated", "checksum", "changed", "appended"],
)
def test_damaged_files_are_refused(
    tmp_path: Path, content: bytes, found: str, expected: str
) -> None:
    """Damage is an error of the file, with its name."""
    path = tmp_path / "damaged"
    path.write_bytes(content)
    message = refused(path)
    assert message.startswith(f"found {found}")
    assert message.endswith(f"; expected {expected}")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A name that nothing or something else bears; a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "none") == "found nothing there; expected a file"
    assert refused(tmp_path) == "found a folder; expected a file"
    assert refused(tmp_path / "pipe") == "found nothing there; expected a file"
    with pytest.raises(InputError, match=r"zero\\x00byte: found nothing there; expected a file"):
        files.read_bytes(tmp_path / "zero\0byte")
    with pytest.raises(InputError, match=r"x: found (File name too long|nothing there); expected"):
        files.read_bytes(tmp_path / ("x" * 5000))


def test_unreadable_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says is passed on."""

    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "secret"
    path.touch()
    monkeypatch.setattr("builtins.open", denied)
    assert refused(path) == "found Permission denied; expected a readable file"


@pytest.mark.parametrize(
    ("content", "found", "expected"),
    [
        (b'{"a": \xff}', "a byte that is not UTF-8 at 6", "JSON text"),
        (b"\x08\x96\x01", "a byte that is not UTF-8 at 1", "JSON text"),
        (b"an ordinary text", "Expecting value at line 1, column 1", "a JSON document"),
        (b'{"a": 1,\n "b" 2}', "Expecting ':' delimiter at line 2, column 6", "a JSON document"),
        (b'{"a": [1', "Expecting ',' delimiter at line 1, column 9", "a JSON document"),
        (b"[NaN]", "NaN", "finite numbers"),
        (b"[-Infinity]", "-Infinity", "finite numbers"),
        (b"[" * 100_000, "too deeply nested values", "a JSON document"),
        (b"9" * 10_000, "Exceeds the limit", "a JSON document"),
        (b'{"a": 1, "b": 2, "a": 1}', "the name a twice", "each name once in an object"),
        (rb'["\ud83d\ude00", "\uD800"]', "half a surrogate pair", "whole characters"),
    ],
    ids=[
        *("utf8", "binary", "text", "syntax", "cut", "nan", "infinity", "depth", "digits"),
        *("name twice", "surrogate"),
    ],
)
def test_bad_json_is_refused(tmp_path: Path, content: bytes, found: str, expected: str) -> None:
    """The error says where in the file the trouble is."""
    path = tmp_path / "document.json"
    path.write_bytes(content)
    message = refused(path, files.read_json)
    assert message.startswith(f"found {found}")
    assert message.endswith(f"; expected {expected}")


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@given(document=json_documents)
@settings(max_examples=50, deadline=None)
def test_json_round_trip(
    tmp_path_factory: pytest.TempPathFactory, name: str, document: Any
) -> None:
    """What is written is read back, and the same document gives the same bytes."""
    folder = tmp_path_factory.mktemp("json")
    files.write_json(folder / name, document)
    files.write_json(folder / "again" / name, document)
    assert files.read_json(folder / name) == document
    assert (folder / name).read_bytes() == (folder / "again" / name).read_bytes()


def test_gzip_has_no_time_stamp(tmp_path: Path) -> None:
    """Bytes 4 to 7 of the header are the time of compression: 0, so that files can be compared."""
    files.write_json(tmp_path / "a.json.gz", [1])
    content = (tmp_path / "a.json.gz").read_bytes()
    assert (content[:2], content[4:8]) == (b"\x1f\x8b", bytes(4))
    files.write_json(tmp_path / "a.json", [1])
    assert (tmp_path / "a.json").read_bytes() == b"[1]"


def test_folders_are_made_and_permissions_are_usual(tmp_path: Path) -> None:
    """A new file may be read by whom the umask lets read it, not by its owner alone."""
    path = tmp_path / "new" / "folder" / "file"
    umask = os.umask(0o027)
    try:
        files.write_bytes(path, b"content")
    finally:
        os.umask(umask)
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    """A full disk or an interrupt, at any point, changes nothing and leaves nothing behind."""
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(error):
            files.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert left_behind(tmp_path) == ["file"]


def test_killed_write_leaves_the_old_content(tmp_path: Path) -> None:
    """A process that dies while it writes does not damage the file."""
    path = tmp_path / "file"
    files.write_bytes(path, b"old")
    code = (
        "import os, signal, sys; from asgd_model import files;"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL);"
        "files.write_bytes(sys.argv[1], b'new' * 100_000)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert done.returncode == -9
    assert path.read_bytes() == b"old"


def test_document_that_is_no_json_is_not_written(tmp_path: Path) -> None:
    """NaN has no place in JSON; the old file stays."""
    path = tmp_path / "a.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}


def test_reader_never_sees_a_part(tmp_path: Path) -> None:
    """While one thread writes two contents in turn, another one reads either, always whole."""
    path = tmp_path / "file"
    contents = [letter * 1_000_000 for letter in (b"a", b"b")]
    files.write_bytes(path, contents[0])
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            files.write_bytes(path, contents[turn % 2])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [path.read_bytes() for _ in range(100)]
    finally:
        stop.set()
        writer.join()
    assert all(content in contents for content in seen)
