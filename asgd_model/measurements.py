"""Measured throughput: the runs of a platform and the steps of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def measurement_window(
    start: NDArray[np.float64], end: NDArray[np.float64], warm_up: int
) -> tuple[float, float]:
    """Interval of a run in which throughput is counted.

    From when every worker has ended `warm_up` steps to when the first worker has ended all of
    its own: in between all workers are at work.

    Parameters
    ----------
    start, end : ndarray of float64, shape (workers, steps)
        Seconds at which each step began and ended; NaN for steps not reached.
    warm_up : int
        Steps per worker that do not count.

    Returns
    -------
    first, last : float
        Seconds.
    """
    if warm_up > 0:
        first = float(np.sort(end, axis=1)[:, warm_up - 1].max())
    else:
        first = float(start[:, 0].max())
    return first, float(np.nanmin(end[:, -1]))
