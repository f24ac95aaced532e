"""YAML documents and their check against pydantic models."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from asgd_model.errors import InputError
from asgd_model.files import read_bytes

MAX_YAML_BYTES = 1 << 16
"""Largest YAML file that is read, in bytes."""

MAX_YAML_VALUES = 100_000
"""Most values in a YAML file, each counted as often as aliases repeat it."""

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the YAML document in a file; only plain values, lists and mappings are built.

    Raises
    ------
    InputError
        As `asgd_model.files.read_bytes`, and if the content is not one YAML document, says the
        type of a value, has a key twice in one mapping, or has more than `MAX_YAML_VALUES`.
    """
    where = os.fspath(path)
    content = read_bytes(path, MAX_YAML_BYTES)
    try:
        loader = _Loader(content)
        root = loader.get_single_node()
        if root is None:
            return None
        if _count(root, {}) > MAX_YAML_VALUES:
            raise InputError(where, "too many values", f"at most {MAX_YAML_VALUES:,}")
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(where, f"{error.problem}{place}", "a YAML document") from error
    except InputError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the date 2026-02-30
        raise InputError(where, " ".join(str(error).split()), "a YAML document") from error
    except RecursionError as error:
        raise InputError(where, "too deeply nested values", "a YAML document") from error


def validate(
    model: type[Model],
    document: object,
    where: str,
    field: str = "",
    context: Mapping[str, Any] | None = None,
    strict: bool | None = None,
) -> Model:
    """Return the document as an instance of `model`.

    Parameters
    ----------
    model : type
        A pydantic model.
    document : object
        What was read from outside.
    where, field : str
        The file or option that the document comes from, and its place there, for the error.
    context : mapping, optional
        Handed to the model's validators.
    strict : bool, optional
        Whether text and booleans are refused where numbers are expected; as the model says by
        default.

    Raises
    ------
    InputError
        For the first field that does not fit, with what was found and what was expected.
    """
    try:
        return model.model_validate(document, context=context, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        place = field
        for key in first["loc"]:
            place += f"[{key}]" if isinstance(key, int) else f".{key}" if place else str(key)
        found, expected = first["input"], first["msg"].removeprefix("Input should be ")
        if first["type"] == "missing":
            found, expected = "nothing", "a value"
        elif first["type"] == "value_error":  # raised by a validator of the model
            expected = str(first["ctx"]["error"])
        raise InputError(where, found, expected, field=place or None) from error


class _Loader(yaml.SafeLoader):
    """Takes no type that the file states (PyYAML fails on many) and no text of half characters."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(None, None, f"the tag {event.tag}", event.start_mark)
        getattr(event, "value", "").encode("utf-8")  # fails for half a surrogate pair
        return super().compose_node(parent, index)


def _count(node: yaml.Node, counted: dict[int, float]) -> float:
    """Number of values in a node; infinite if it contains itself.

    What aliases repeat is built once, but looked at as often as it is repeated, in checks,
    messages and merged mappings: a few lines can mean billions of values.
    """
    if id(node) not in counted:
        counted[id(node)] = math.inf
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
            keys = [key for key in children[::2] if isinstance(key, yaml.ScalarNode)]
            times = Counter((key.tag, key.value) for key in keys)
            for key in keys:
                if times[key.tag, key.value] > 1:
                    problem = f"the key {key.value} twice"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        counted[id(node)] = 1.0 + sum(_count(child, counted) for child in children)
    return counted[id(node)]
