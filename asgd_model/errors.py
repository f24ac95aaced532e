"""The one error that the package raises for input it cannot use, and its one warning."""

from __future__ import annotations

import math


class InputError(ValueError):
    """Input from outside that cannot be used.

    Parameters
    ----------
    where : str
        The file, option or argument that is at fault.
    found : object
        What was found there; shown on one line, shortened to 200 characters.
    expected : str
        What would have been accepted.
    field : str, optional
        The field, column or cell within `where`.
    """

    def __init__(self, where: str, found: object, expected: str, field: str | None = None) -> None:
        self.where = where
        self.field = field
        self.found = found
        self.expected = expected
        place = f"{where}: {field}" if field else where
        message = f"{place}: found {_shown(found)}; expected {expected}"
        # One line, and nothing that controls a terminal, whatever a file contains.
        super().__init__(message if message.isprintable() else repr(message)[1:-1])

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str | None]]:
        """Let the error come back from another process."""
        return InputError, (self.where, _shown(self.found), self.expected, self.field)


class PrecisionWarning(UserWarning):
    """A simulation that ended before its throughput was known as well as asked for.

    Parameters
    ----------
    reached, asked : float
        Half-width of the 95 % interval relative to the mean; `reached` is NaN if unknown.
    spent : str
        What was simulated, the most allowed.
    """

    def __init__(self, reached: float, asked: float, spent: str) -> None:
        self.reached = reached
        self.asked = asked
        known = "unknown" if math.isnan(reached) else f"known to {100 * reached:.2g} %"
        wanted = f"{100 * asked:.2g} % was asked for"
        super().__init__(f"throughput {known}, {wanted}, after {spent}, the most allowed")


def _shown(found: object) -> str:
    try:
        text = str(found)
    except (ValueError, RecursionError):  # an integer of too many digits, or something too deep
        return f"a value of type {type(found).__name__} that cannot be shown"
    return text if len(text) <= 200 else text[:200] + "..."
