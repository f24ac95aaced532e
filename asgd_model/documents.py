"""YAML documents and their check against pydantic models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from asgd_model.errors import InputError
from asgd_model.files import read_bytes

MAX_YAML_BYTES = 1 << 20
"""Largest YAML file that is read, in bytes."""

Model = TypeVar("Model", bound=BaseModel)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Return the YAML document in a file; only plain values, lists and mappings are built.

    Raises
    ------
    InputError
        As `asgd_model.files.read_bytes`, and if the content is not one YAML document.
    """
    where = os.fspath(path)
    content = read_bytes(path, MAX_YAML_BYTES)
    try:
        return yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(where, f"{error.problem}{place}", "a YAML document") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2026-02-30
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
