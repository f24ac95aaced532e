"""Running time as a function of the number of machines, fitted to a few small runs.

Source
    Venkataraman, Yang, Franklin, Recht, Stoica, Ernest: Efficient Performance Prediction for
    Large-Scale Advanced Analytics, NSDI 2016.
Equations
    The time of a job of the given scale on a number of machines is

        t0 + t1 scale / machines + t2 machines + t3 log(machines),

    with coefficients that are not negative, by least squares. Training runs are chosen by
    optimal experiment design: with a_i the terms of candidate i, find the weights l_i in [0, 1]
    within a budget that minimise the trace of the inverse of sum_i l_i a_i a_i' (A-optimal), or
    maximise its determinant (D-optimal).
Inputs
    Measured throughput of some sizes. The job is one step, its time 1 / X with all workers
    together, its scale 1, and the machines are the workers.
Sees
    Measurements of 1, 2 and 4 workers with the same number of servers as the predicted cluster.
Limits
    Three sizes do not determine four coefficients; Ernest's authors use more. Non-negative least
    squares often settles it all the same; where not, the interval spans all coefficients that fit
    as well. It is that of the fitted mean, not of a single run, and is missing if there are not
    more measurements than coefficients. Asynchronous workers that share a server approach
    a constant rate; no term but t0 describes that.

Examples
--------
A step of the job takes 0.1 + 0.6 / W seconds:

>>> import numpy as np
>>> machines = np.array([1, 2, 4])
>>> fit = NonNegativeFit.of(terms(machines), 0.1 + 0.6 / machines)
>>> fit.coefficients.round(6).tolist()
[0.1, 0.6, 0.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, LinearConstraint, minimize

from asgd_model.baselines.fit import NonNegativeFit, training_rows, what_was_seen
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.prediction import prediction
from asgd_model.profile import Profile

SIZES = (1, 2, 4)
"""Numbers of workers whose measurements the fit sees."""
Criterion = Literal["A", "D"]


def predict(
    profile: Profile, clusters: Sequence[Cluster], measured: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Throughput by the fitted function; see `prediction` for the columns.

    Parameters
    ----------
    profile : Profile
        Not looked at.
    clusters : sequence of Cluster
        What to predict for.
    measured : DataFrame
        One row per run; columns `workers`, `parameter_servers`, `steps_per_s`. Rows of other
        sizes than `SIZES` are not looked at.

    Raises
    ------
    InputError
        If for the number of servers of a cluster measurements of one of `SIZES` are missing, or
        if they are not positive numbers.
    """
    time, low, high = np.empty((3, len(clusters)))
    counts = np.array([len(cluster.servers) for cluster in clusters], dtype=np.intp)
    machines = np.array([len(cluster.workers) for cluster in clusters])
    for servers in np.unique(counts):
        rows = training_rows(measured, SIZES, "ernest", servers=int(servers))
        fit = NonNegativeFit.of(terms(rows["workers"]), 1 / rows["steps_per_s"])
        chosen = counts == servers
        wanted = terms(machines[chosen])
        time[chosen] = fit.mean(wanted)
        low[chosen], high[chosen] = fit.interval(wanted)
    return prediction(clusters, 1 / time, what_was_seen(SIZES), 1 / high, 1 / low)


def terms(machines: ArrayLike, scale: ArrayLike = 1.0) -> NDArray[np.float64]:
    """What t0, t1, t2 and t3 are multiplied by, shape (runs, 4)."""
    n, s = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (machines, scale)))
    return np.column_stack([np.ones_like(n), s / n, n, np.log(n)])


def experiment_design(
    machines: Sequence[int], budget: float, *, criterion: Criterion = "A"
) -> pd.DataFrame:
    """Which cluster sizes to measure: the optimal weights of candidate runs.

    The relaxation of the choice of the module's equations, a convex problem, solved by
    sequential quadratic programming. The terms are scaled by their means over the candidates,
    as in the authors' program, so that the criterion does not depend on units.

    Parameters
    ----------
    machines : sequence of int
        Sizes of the candidate runs.
    budget : float
        What the runs may cost together; a run costs as much as it has machines, and takes part
        of its cost if its weight is below 1.
    criterion : {"A", "D"}
        A minimises the mean variance of the coefficients, D the volume of their confidence
        ellipsoid.

    Returns
    -------
    DataFrame
        One row per candidate; columns `workers`, `cost` (machines) and `weight` (0 to 1).
        Measure those whose weight is not close to 0.

    Raises
    ------
    InputError
        If there are fewer candidates than coefficients, a size is below 1, the budget is not
        above 0, or there is no such criterion.
    RuntimeError
        If the optimiser does not converge.

    Examples
    --------
    With as many candidates as coefficients, a D-optimal design spends the same on each:

    >>> design = experiment_design([1, 2, 4, 8], budget=4, criterion="D")
    >>> (design["weight"] * design["cost"]).round(3).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    sizes = np.asarray(machines, dtype=np.float64)
    if criterion not in get_args(Criterion):
        raise InputError("design", criterion, f"one of {', '.join(get_args(Criterion))}")
    if len(np.unique(sizes)) < terms(1).shape[1]:
        found, expected = f"{len(np.unique(sizes))} sizes", "at least as many as coefficients, 4"
        raise InputError("design", found, expected, field="machines")
    if not (sizes >= 1).all():
        raise InputError("design", sizes.min(), "at least 1", field="machines")
    if not budget > 0:
        raise InputError("design", budget, "a number above 0", field="budget")

    # The problem is solved for the shares of the budget, u = weight * cost / budget, and in
    # orthogonal terms: the four terms as they are would be close to collinear.
    candidates = terms(sizes)
    candidates /= candidates.mean(axis=0)
    orthogonal, triangle = np.linalg.qr(candidates)
    back = np.linalg.inv(triangle)
    metric = back.T @ back
    per_share = budget / sizes

    def objective(shares: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Logarithm of the criterion, and its gradient."""
        weights = shares * per_share
        inverse = np.linalg.inv(orthogonal.T @ (orthogonal * weights[:, None]))
        image = orthogonal @ inverse
        if criterion == "D":
            gradient = -(image * orthogonal).sum(axis=1)
            return float(np.linalg.slogdet(inverse)[1]), gradient * per_share
        trace = float(np.trace(inverse @ metric))
        gradient = -((image @ metric) * image).sum(axis=1)
        return float(np.log(trace)), gradient * per_share / trace

    most = np.minimum(1.0, 1 / per_share)
    solution = minimize(
        objective,
        x0=most / max(1.0, most.sum()),
        jac=True,
        method="SLSQP",
        bounds=Bounds(1e-9 * most, most),
        constraints=LinearConstraint(np.ones((1, len(sizes))), -np.inf, 1),
        options={"ftol": 1e-10, "maxiter": 1000},
    )
    if not solution.success:
        raise RuntimeError(f"the design of experiments was not found: {solution.message}")
    weights = np.where(solution.x < 1e-6, 0.0, solution.x * per_share)
    return pd.DataFrame({"workers": np.asarray(machines), "cost": sizes, "weight": weights})
