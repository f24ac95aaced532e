"""Speed as a function of workers and servers, fitted to a few measured sizes.

Source
    Peng, Bao, Chen, Wu, Guo, Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning
    Clusters, EuroSys 2018.
Equations
    With W workers and P servers, asynchronous training makes

        W / (a + b W / P + c W + d P) steps/s,

    and synchronous training of M examples per step over all workers makes

        1 / (a M / W + b + c W / P + d W + e P) steps/s.

    Both denominators, the time of a step, are linear in coefficients that are not negative:
    least squares on the measured W / X or 1 / X.
Inputs
    Measured throughput of some sizes; the profile gives the batch size only.
Sees
    Measurements of 1, 2 and 4 workers, all repeats and all numbers of servers.
Limits
    Measured with one number of servers only, a and d, b and c cannot be told apart. Predictions
    for that number do not depend on how they are divided; for others the interval shows all that
    is possible. The same holds for a and b of synchronous training if M grows with W. The
    interval is that of the fitted mean, not of a single run; it is missing if there are not more
    measurements than coefficients. It knows nothing of errors of the model itself.

Examples
--------
Three runs that take 0.5 + 0.1 W seconds per step of each worker:

>>> import pandas as pd
>>> runs = pd.DataFrame({"workers": [1, 2, 4], "parameter_servers": 1})
>>> runs["steps_per_s"] = runs["workers"] / (0.5 + 0.1 * runs["workers"])
>>> rows = training_rows(runs, SIZES, "optimus")
>>> fit = NonNegativeFit.of(asynchronous_terms(rows["workers"], rows["servers"]),
...                         rows["workers"] / rows["steps_per_s"])
>>> fit.mean(asynchronous_terms([8], [1])).round(3).tolist()  # 0.5 + 0.1 x 8
[1.3]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from asgd_model.baselines.fit import NonNegativeFit, training_rows, what_was_seen
from asgd_model.cluster import Cluster
from asgd_model.prediction import prediction
from asgd_model.profile import Profile

SIZES = (1, 2, 4)
"""Numbers of workers whose measurements the fit sees."""


def predict(
    profile: Profile,
    clusters: Sequence[Cluster],
    measured: pd.DataFrame | None = None,
    *,
    synchronous: bool = False,
    total_batch: int | None = None,
) -> pd.DataFrame:
    """Throughput by the fitted function; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Gives the batch size of a worker.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame
        One row per run; columns `workers`, `parameter_servers`, `steps_per_s`. Rows of other
        sizes than `SIZES` are not looked at.
    synchronous : bool
        Whether a step is one of all workers together, in `measured` and in the result.
    total_batch : int, optional
        Examples of a synchronous step, spread over the workers; by default each worker has its
        own batch.

    Raises
    ------
    InputError
        If measurements of one of `SIZES` are missing or are not positive numbers.
    """
    rows = training_rows(measured, SIZES, "optimus")
    sizes = np.array([(len(c.workers), len(c.servers)) for c in clusters]).reshape(-1, 2)

    def terms(workers: ArrayLike, servers: ArrayLike) -> NDArray[np.float64]:
        if not synchronous:
            return asynchronous_terms(workers, servers)
        own = profile.metadata.batch_size * np.asarray(workers)
        return synchronous_terms(workers, servers, own if total_batch is None else total_batch)

    def steps(workers: ArrayLike) -> NDArray[np.float64]:
        """Steps that are counted while every worker makes one."""
        made = np.asarray(workers, dtype=np.float64)
        return np.ones_like(made) if synchronous else made

    fit = NonNegativeFit.of(
        terms(rows["workers"], rows["servers"]), steps(rows["workers"]) / rows["steps_per_s"]
    )
    wanted = terms(*sizes.T)
    low, high = fit.interval(wanted)
    done = steps(sizes[:, 0])
    return prediction(
        clusters, done / fit.mean(wanted), what_was_seen(SIZES), done / high, done / low
    )


def asynchronous_terms(workers: ArrayLike, servers: ArrayLike) -> NDArray[np.float64]:
    """What a, b, c and d are multiplied by, shape (sizes, 4)."""
    w, p = np.broadcast_arrays(*(np.asarray(n, dtype=np.float64) for n in (workers, servers)))
    return np.column_stack([np.ones_like(w), w / p, w, p])


def synchronous_terms(
    workers: ArrayLike, servers: ArrayLike, total_batch: ArrayLike
) -> NDArray[np.float64]:
    """What a, b, c, d and e are multiplied by, shape (sizes, 5)."""
    w, p, m = np.broadcast_arrays(
        *(np.asarray(n, dtype=np.float64) for n in (workers, servers, total_batch))
    )
    return np.column_stack([m / w, np.ones_like(w), w / p, w, p])
