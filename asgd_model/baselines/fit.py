"""Non-negative least squares on a few measured cluster sizes, with the uncertainty of the fit.

Both fitted baselines describe a time as a sum of terms with non-negative coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import null_space
from scipy.optimize import linprog, nnls
from scipy.stats import t as student_t

from asgd_model.errors import InputError

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
"""Probability that an interval of a fit aims at."""


@dataclass(frozen=True)
class NonNegativeFit:
    """Coefficients x >= 0 that minimise the squared error of design @ x.

    Attributes
    ----------
    design : ndarray, shape (rows, coefficients)
        Terms of each measurement.
    response : ndarray, shape (rows,)
        Measured times in seconds.
    coefficients : ndarray, shape (coefficients,)
        Found by `scipy.optimize.nnls` (Lawson and Hanson 1974).
    """

    design: Floats
    response: Floats
    coefficients: Floats

    @classmethod
    def of(cls, design: ArrayLike, response: ArrayLike) -> NonNegativeFit:
        """Fit the coefficients."""
        terms = np.asarray(design, dtype=np.float64)
        times = np.asarray(response, dtype=np.float64)
        return cls(terms, times, nnls(terms, times)[0])

    def mean(self, terms: ArrayLike) -> Floats:
        """Fitted times of rows of terms, shape (rows,), in seconds."""
        times: Floats = np.asarray(terms, dtype=np.float64) @ self.coefficients
        return times

    def interval(self, terms: ArrayLike) -> tuple[Floats, Floats]:
        """A 95 % confidence interval of each fitted time.

        Two things are uncertain. The measurements scatter: the delta method on the logarithm of
        the time, with the coefficients that the fit holds at 0 taken for known and Student's t
        for the residuals' variance. And rows can be too few to determine all coefficients: then
        the interval goes from the least to the greatest time among all non-negative coefficients
        that fit the measurements equally well, found by linear programming.

        Parameters
        ----------
        terms : array_like, shape (rows, coefficients)
            What to predict.

        Returns
        -------
        low, high : ndarray, shape (rows,)
            In seconds. NaN if the measurements are not more than the positive coefficients, so
            that no residual tells their scatter.
        """
        rows = np.asarray(terms, dtype=np.float64)
        active = self.coefficients > 0
        free = len(self.response) - int(np.linalg.matrix_rank(self.design[:, active]))
        if free == 0:
            return np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        residuals = self.response - self.mean(self.design)
        # With design = U S V', the variance of row @ x is that of the noise times |row V / S|^2.
        spread = rows[:, active] @ np.linalg.pinv(self.design[:, active])
        error = np.sqrt(residuals @ residuals / free) * np.linalg.norm(spread, axis=1)
        factor = np.exp(student_t.ppf(0.5 + CONFIDENCE / 2, free) * error / self.mean(rows))
        least, greatest = self._equally_good(rows)
        return least / factor, greatest * factor

    def _equally_good(self, rows: Floats) -> tuple[Floats, Floats]:
        """Least and greatest time of each row over all coefficients that fit as well."""
        least, greatest = self.mean(rows), self.mean(rows)
        directions = null_space(self.design)
        for index, slope in enumerate(rows @ directions):
            if np.abs(slope).max(initial=0.0) <= 1e-9 * np.abs(rows[index]).max():
                continue
            for extreme, sign in ((least, 1.0), (greatest, -1.0)):
                found = linprog(
                    sign * slope, A_ub=-directions, b_ub=self.coefficients, bounds=(None, None)
                )
                extreme[index] += sign * (-np.inf if found.fun is None else found.fun)
        return least, greatest


def training_rows(
    measured: pd.DataFrame | None, sizes: Sequence[int], method: str, servers: int | None = None
) -> pd.DataFrame:
    """The measurements that a fitted method may see.

    Parameters
    ----------
    measured : DataFrame
        One row per run; columns `workers`, `parameter_servers` and `steps_per_s`.
    sizes : sequence of int
        Numbers of workers that must be there; all other rows are left out.
    method : str
        Named in errors.
    servers : int, optional
        Number of parameter servers that the runs must have had; any by default.

    Returns
    -------
    DataFrame
        Columns `workers`, `servers`, `steps_per_s`, float64.

    Raises
    ------
    InputError
        If there are no measurements, a column or one of the sizes is missing, or a value is not
        a positive number.
    """
    needed = f"measurements of {', '.join(map(str, sizes))} workers"
    if servers is not None:
        needed += f" and {servers} parameter servers"
    if measured is None:
        raise InputError(method, "no measurements", needed)
    columns = {"workers": "workers", "parameter_servers": "servers", "steps_per_s": "steps_per_s"}
    for name in columns:
        if name not in measured.columns:
            found = f"columns {', '.join(map(str, measured.columns))}"
            raise InputError(method, found, f"the column {name}", field="measured")
    rows = measured[list(columns)].rename(columns=columns)
    rows = rows[rows["workers"].isin(sizes)]
    if servers is not None:
        rows = rows[rows["servers"] == servers]
    missing = [size for size in sizes if size not in set(rows["workers"])]
    if missing:
        found = f"no run of {', '.join(map(str, missing))} workers"
        raise InputError(method, found, needed, field="measured")
    for name in columns.values():
        values = pd.to_numeric(rows[name], errors="coerce")
        wrong = rows[name][~(np.isfinite(values) & (values > 0))]
        if len(wrong):
            found = f"{name} {wrong.iloc[0]}"
            raise InputError(method, found, "a positive number", field="measured")
    return rows.astype(np.float64)


def what_was_seen(sizes: Sequence[int]) -> str:
    """Text for the column `sees`."""
    return f"measured W in {{{', '.join(map(str, sizes))}}}"
