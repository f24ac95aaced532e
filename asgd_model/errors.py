"""The one error that the package raises for input it cannot use."""

from __future__ import annotations


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
