"""YAML and JSON from anywhere: read, or refused with an `InputError`; nothing else, and soon."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asgd_model.documents import MAX_YAML_BYTES, read_yaml
from asgd_model.errors import InputError
from asgd_model.files import read_json

from .readers import CORPUS, project, read

YAML_READERS = ("platform", "campaign", "pipeline")
SECONDS = 3.0
"""Of CPU time, longer than any of these files may take; most take a few milliseconds."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**4000, 10**4010)
    | st.floats()
    | st.dates()
    | st.text(max_size=6)
    | st.sampled_from(["", "..", "/dev/zero", "a\0b", "x" * 5000, "notebooks/circle.ipynb"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
fragments = st.lists(
    st.sampled_from(
        [
            *("name", "a", "1", "0x1F", "-.inf", ".nan", "1:30", "2026-02-30", "~", "true", "''"),
            *("&a ", "*a", "<<", "!!int ", "!!float ''", "!!timestamp x", "!!binary x", "!x "),
            *(": ", "- ", "? ", "\n", "\n  ", "[", "]", "{", "}", ", ", "#", "|\n", ">-\n"),
            *("---\n", "...\n", "%YAML 1.1\n", "@", "`", '"', '"\\ud800"', "\u00e9", "\t", "\x00"),
        ]
    ),
    max_size=30,
).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("documents"))


def good(reader: str) -> Any:
    return yaml.safe_load((CORPUS / reader / "good.yaml").read_bytes())


def change(document: Any, data: st.DataObject) -> Any:
    """The document with one value replaced, removed or added."""
    holder, key = {"": document}, ""
    while isinstance(holder[key], dict | list) and holder[key] and data.draw(st.integers(0, 4)):
        holder = holder[key]
        keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
    changes = ["replace", "remove", "add"] if holder is not document or key != "" else ["replace"]
    match data.draw(st.sampled_from(changes)):
        case "replace":
            holder[key] = data.draw(values)
        case "remove":
            del holder[key]
        case "add" if isinstance(holder, dict):
            holder[data.draw(st.text(max_size=4) | st.integers())] = data.draw(values)
        case "add":
            holder.insert(key, data.draw(values))
    return document


@pytest.mark.parametrize("reader", YAML_READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_documents(folder: Path, reader: str, data: st.DataObject) -> None:
    """A valid file in which one thing is anything else."""
    holder = {"": good(reader)}
    holder[""] = change(holder[""], data)
    read(reader, folder, yaml.safe_dump(holder[""], allow_unicode=True).encode())


@pytest.mark.parametrize("reader", YAML_READERS)
@settings(max_examples=60, deadline=None)
@given(text=fragments)
@example(text="? [a]\n: b")
@example(text="<<: [a]")
@example(text="a: &a {<<: *a}")
def test_what_yaml_can_say(folder: Path, reader: str, text: str) -> None:
    """Tags, anchors, merged keys, other documents: nothing gets past the error of the file."""
    read(reader, folder, text.encode())


@pytest.mark.parametrize("reader", YAML_READERS)
@settings(max_examples=30, deadline=None)
@given(content=st.binary(min_size=1, max_size=60))
def test_any_bytes(folder: Path, reader: str, content: bytes) -> None:
    """Whatever the encoding."""
    read(reader, folder, content)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 65_000,
        "- " * 32_000,
        "? " * 32_000,
        "a: 1" + ":1" * 32_000,
        "a: [" + ", ".join(f"&a{index} x" for index in range(6000)) + "]",
        "{" + ", ".join(f"a{index}: b" for index in range(5000)) + "}",
        "a: " + "9" * 65_000,
        "a: |\n" + " x\n" * 20_000,
        '"' + "\\x41" * 16_000 + '"',
        "a: &a [x]\n" + "\n".join(f"b{index}: [*a, *a]" for index in range(3500)),
    ],
    ids=lambda text: text[:8].strip(),
)
def test_large_documents_take_little_time(tmp_path: Path, text: str) -> None:
    """As large as is accepted, and as nested, long or repetitive as can be."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert len(text) < MAX_YAML_BYTES
    begin = time.process_time()
    with contextlib.suppress(InputError):
        read_yaml(path)
    assert time.process_time() - begin < SECONDS


def test_aliases_and_merged_keys_are_understood(tmp_path: Path) -> None:
    """What is refused is their abuse: a mapping may take defaults from another and differ."""
    path = tmp_path / "a.yaml"
    path.write_text("base: &b {x: 1, y: 2}\nlist: [*b, {<<: *b, y: 3}]\n'1': a\n1: b\n")
    assert read_yaml(path) == {
        "base": {"x": 1, "y": 2},
        "list": [{"x": 1, "y": 2}, {"x": 1, "y": 3}],
        "1": "a",
        1: "b",
    }


@settings(max_examples=100, deadline=None)
@given(document=values.filter(lambda value: value == value))
def test_python_and_json(folder: Path, document: Any) -> None:
    """What Python writes as JSON is read as it was, but for what JSON does not have."""
    path = folder / "a.json"
    try:
        text = json.dumps(document, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):
        return
    path.write_text(text)
    assert read_json(path) == json.loads(text)
