"""Files that mean to exhaust memory or time are refused before they do."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asgd_model.files import MAX_BYTES, MAX_VALUES
from asgd_model.measurements import MAX_CSV_BYTES
from asgd_model.tensorflow_trace import MAX_BYTES as MAX_TRACE_BYTES

from .readers import CORPUS

MEMORY = 1_500_000_000
"""Bytes of address space that a reader gets beyond what the library takes once it is loaded."""

READ = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from readers import READERS, project, read
import pandas, tensorboard.compat.proto.config_pb2
folder = project(Path(sys.argv[2]))
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[3]),) * 2)
for line in sys.stdin:
    reader, path = line.split()
    print(type(read(reader, folder, Path(path).read_bytes())).__name__, flush=True)
"""


class Child:
    """A process with little memory that reads files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-c", READ, str(Path(__file__).parent), str(folder), str(MEMORY)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def read(self, reader: str, path: Path) -> str:
        """Name of the type of what the reader returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{reader} {path}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        _, errors = self._process.communicate(timeout=30)
        assert (self._process.returncode, errors) == (0, "")


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    made = Child(tmp_path_factory.mktemp("limits") / "project")
    yield made
    made.end()


def bomb(path: Path, size: int, block: bytes) -> Path:
    """A gzip file of some kilobytes that holds `size` bytes: one block over and over again."""
    member = gzip.compress(block * ((1 << 20) // len(block)), mtime=0)
    path.write_bytes(member * (size // (1 << 20) + 1))
    assert path.stat().st_size < 1 << 20
    return path


@pytest.mark.parametrize(
    ("reader", "size", "block"),
    [
        ("json", MAX_BYTES, b"0"),
        ("profile", MAX_BYTES, b" "),
        ("run_metadata", MAX_TRACE_BYTES, b"\0"),
        ("measurements", MAX_CSV_BYTES, b"a,b\n"),
        ("steps", MAX_CSV_BYTES, b","),
        ("platform", 1 << 29, b"a: b\n"),
        ("pipeline", 1 << 29, b"- "),
    ],
)
def test_gzip_bombs(child: Child, tmp_path: Path, reader: str, size: int, block: bytes) -> None:
    """A file of kilobytes that decompresses to more than is accepted."""
    assert child.read(reader, bomb(tmp_path / "bomb", size, block)) == "InputError"


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        ("json", b"[" + b"[]," * (MAX_VALUES // 2) + b"[]]"),
        ("json", b'{"a":' * (1 << 20)),
        ("run_metadata", b"\x1a\x00" * (1 << 21)),
        ("run_metadata", b"\x0a\x04\x0a\x02\x12\x00" * (1 << 19)),
        ("measurements", b"," * (1 << 24) + b"\n1\n"),
        ("measurements", b"a\n" + b"," * (1 << 24)),
        ("measurements", b'"' * (1 << 22)),
        ("platform", b"&a [" * 50_000),
    ],
    ids=[
        *("empty lists", "deep objects", "empty graphs", "empty rows"),
        *("wide heading", "wide row", "quotes", "anchors"),
    ],
)
def test_much_from_little(child: Child, tmp_path: Path, reader: str, content: bytes) -> None:
    """Bytes that each mean much more memory than they are."""
    path = tmp_path / "file"
    path.write_bytes(content)
    assert child.read(reader, path) == "InputError"


def test_operations_by_the_thousand(child: Child, tmp_path: Path) -> None:
    """A chain of 50,000 operations, each one waiting for the one before, is just a profile."""
    ops = 50_000
    document = json.loads((CORPUS / "profile" / "good.json").read_bytes())
    document["ops"] = {
        "name": [f"op {index}" for index in range(ops)],
        "kind": ["MatMul"] * ops,
        "resource": ["worker"] * ops,
        "server": [-1] * ops,
        "bytes": [0] * ops,
        "dependencies": [[index - 1] if index else [] for index in range(ops)],
    }
    document["steps"] = {
        "work": [[1e-6] * ops],
        "start": [[index * 1e-6 for index in range(ops)]],
        "end": [[(index + 1) * 1e-6 for index in range(ops)]],
    }
    path = tmp_path / "file"
    path.write_text(json.dumps(document))
    assert child.read("profile", path) == "Profile"
    document["ops"]["dependencies"][0] = [ops - 1]
    path.write_text(json.dumps(document))
    assert child.read("profile", path) == "InputError"
