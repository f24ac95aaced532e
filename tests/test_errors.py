"""An error says where, what was found and what was expected."""

from __future__ import annotations

import math
import pickle

import pytest

from asgd_model.errors import InputError, PrecisionWarning


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


def test_errors_cross_processes() -> None:
    """An error that another process raises arrives with its message and its parts."""
    error = InputError("a.csv", range(3), "a number", field="column workers")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is InputError
    assert str(arrived) == str(error)
    assert (arrived.where, arrived.field, arrived.expected) == ("a.csv", error.field, "a number")


@pytest.mark.parametrize(("reached", "known"), [(0.0234, "known to 2.3 %"), (math.nan, "unknown")])
def test_warning_says_what_was_reached(reached: float, known: str) -> None:
    """In per cent of the throughput, with what was asked for and what it took."""
    message = str(PrecisionWarning(reached, 0.005, "9 runs"))
    assert message == f"throughput {known}, 0.5 % was asked for, after 9 runs, the most allowed"


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("a\nb\x1b[2J\u2028", r"a\nb\x1b[2J\u2028"),
        ("größe", "größe"),
        (16**5000, "a value of type int that cannot be shown"),
        ([16**5000], "a value of type list that cannot be shown"),
    ],
    ids=["controls", "letters", "integer", "list"],
)
def test_a_message_is_one_line(found: object, shown: str) -> None:
    """Whatever was found does nothing to a terminal, and can be shown."""
    message = str(InputError("a\tb", found, "c"))
    assert message == rf"a\tb: found {shown}; expected c"
    assert message.isprintable()
