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
        What was found there; shown as it is, shortened to 200 characters.
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
        shown = str(found)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        place = f"{where}: {field}" if field else where
        super().__init__(f"{place}: found {shown}; expected {expected}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str | None]]:
        """Let the error come back from another process."""
        return InputError, (self.where, str(self.found), self.expected, self.field)


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
