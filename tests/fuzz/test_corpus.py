"""What the fuzzer starts from can be read, and what it once broke is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from asgd_model.errors import InputError

from .readers import CORPUS, READERS, project, read

FILES = sorted(path for reader in READERS for path in (CORPUS / reader).iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_corpus(tmp_path: Path, path: Path) -> None:
    """Names tell what is expected: ``good...`` is read, all else is an error of the file."""
    found = read(path.parent.name, project(tmp_path), path.read_bytes())
    assert isinstance(found, InputError) != path.name.startswith("good")


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_has_seeds(reader: str) -> None:
    """A fuzzer that starts from nothing that is valid tests the first check only."""
    assert any(path.name.startswith("good") for path in (CORPUS / reader).iterdir())
