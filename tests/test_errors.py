"""An error says where, what was found and what was expected."""

from __future__ import annotations

import pytest

from asgd_model.errors import InputError


def test_parts_are_in_the_message_and_on_the_error() -> None:
    """Programs read the attributes, people the message; old code that catches ValueError works."""
    error = InputError("a.csv", -1, "a number above 0", field="column workers")
    assert str(error) == "a.csv: column workers: found -1; expected a number above 0"
    assert (error.where, error.field, error.found) == ("a.csv", "column workers", -1)
    assert error.expected == "a number above 0"
    assert isinstance(error, ValueError)


def test_field_may_be_missing() -> None:
    """What concerns a whole file names the file only."""
    assert str(InputError("a.csv", "no rows", "rows")) == "a.csv: found no rows; expected rows"


@pytest.mark.parametrize("length", [200, 201, 100_000])
def test_long_values_are_shortened(length: int) -> None:
    """A message stays readable whatever the file contains; the attribute keeps all of it."""
    error = InputError("a", "x" * length, "y")
    assert str(error).count("x") == 200 + "expected".count("x")
    assert ("..." in str(error)) == (length > 200)
    assert error.found == "x" * length
