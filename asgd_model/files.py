"""Reading within bounds and writing all or nothing."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from asgd_model.errors import InputError

MAX_BYTES = 1 << 28
"""Largest content that a file may have once decompressed, in bytes."""

MAX_VALUES = 1 << 25
"""Most values in a JSON document: an empty list takes two bytes there and 64 in memory."""

_GZIP_MAGIC = b"\x1f\x8b"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""How JSON writes one half of a character; without its other half it is no text."""


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file, decompressed if it is gzip.

    Parameters
    ----------
    path : path-like
        A regular file.
    max_bytes : int
        Largest content accepted, in bytes after decompression: a small gzip file can hold
        more than the memory does.

    Raises
    ------
    InputError
        If there is no such file, it cannot be read, is empty, damaged or too large.
    """
    where = os.fspath(path)
    try:
        if not Path(path).is_file():
            found = "a folder" if Path(path).is_dir() else "nothing there"
            raise InputError(where, found, "a file")
        with open(path, "rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if compressed else raw
            content: bytes = stream.read(max_bytes + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(where, f"damaged gzip data ({error})", "a complete gzip file") from error
    except OSError as error:
        raise InputError(where, error.strerror or str(error), "a readable file") from error
    if not content:
        raise InputError(where, "an empty file", "content")
    if len(content) > max_bytes:
        raise InputError(where, f"more than {max_bytes} bytes", f"at most {max_bytes} bytes")
    return content


def read_json(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> Any:
    """Return the JSON document in a file, plain or gzip.

    What the format leaves open is refused: NaN and infinity, a name twice in one object, text
    with half a character.

    Raises
    ------
    InputError
        As `read_bytes`, and if the content is not UTF-8, not JSON or more than `MAX_VALUES`.
    """
    where = os.fspath(path)
    content = read_bytes(path, max_bytes)
    if sum(content.count(mark) for mark in (b"[", b"{", b",")) >= MAX_VALUES:
        raise InputError(where, "too many values", f"at most {MAX_VALUES:,}")

    def refuse(constant: str) -> NoReturn:
        raise InputError(where, constant, "finite numbers")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise InputError(where, f"the name {twice} twice", "each name once in an object")
        return members

    try:
        text = content.decode("utf-8")
        document = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
        if _SURROGATE.search(text):
            json.dumps(document, ensure_ascii=False).encode("utf-8")
        return document
    except UnicodeDecodeError as error:
        found = f"a byte that is not UTF-8 at {error.start}"
        raise InputError(where, found, "JSON text") from error
    except UnicodeEncodeError as error:
        raise InputError(where, "half a surrogate pair", "whole characters") from error
    except json.JSONDecodeError as error:
        found = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise InputError(where, found, "a JSON document") from error
    except RecursionError as error:
        raise InputError(where, "too deeply nested values", "a JSON document") from error
    except InputError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise InputError(where, str(error), "a JSON document") from error


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file all or nothing: a reader sees the old content or the new, never a part.

    A link stays, and what it leads to is written. So does what is no file, such as ``/dev/null``
    or a pipe: the content goes there.

    Raises
    ------
    OSError
        If the folder cannot be written; the file at `path` is then as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | os.PathLike[str], document: Any) -> None:
    """Write a JSON document all or nothing, as gzip if the name ends in ``.gz``.

    The same document gives the same bytes (no time stamp in the gzip header).
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    content = text.encode("utf-8")
    if os.fspath(path).endswith(".gz"):
        content = gzip.compress(content, compresslevel=9, mtime=0)
    write_bytes(path, content)
