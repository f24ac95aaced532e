"""One call from a profile to predicted throughput: any cluster sizes, any methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from asgd_model import simulator
from asgd_model.baselines import BASELINES, baseline
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.queueing import asgd, overlap

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("simulation", "queueing", "queueing_overlap", *BASELINES)
"""Names of all predictors."""


def predict(
    profile: Profile,
    workers: Iterable[int],
    *,
    servers: int | Iterable[int] | None = None,
    methods: Sequence[str] = ("simulation", "queueing"),
    measured: pd.DataFrame | None = None,
    replications: int = 20,
    precision: float | None = None,
    most_replications: int = 1000,
    steps: int | Mapping[int, int] = 20,
    warm_up: int = 2,
    seed: int = 0,
    **cluster: Any,
) -> pd.DataFrame:
    """Predict the throughput of a training job for several cluster sizes.

    Parameters
    ----------
    profile : Profile
        The job on one worker.
    workers : iterable of int
        Numbers of workers.
    servers : int or iterable of int, optional
        Numbers of parameter servers, each with every number of workers; as many as the profiled
        job had by default.
    methods : sequence of str
        Any of `METHODS`.
    measured : DataFrame, optional
        Measured runs with the columns `workers`, `parameter_servers` and `steps_per_s`, for the
        methods that are fitted to some of them. All others see one worker only.
    replications, precision, most_replications, steps, warm_up, seed
        Of the simulation; see `asgd_model.simulator.replicate`. `steps` may be given by number of
        workers, as `asgd_model.steps_per_worker` finds them in measured runs.
    **cluster
        What differs from the profiled cluster: `bandwidth`, `worker_cores`, `server_cores`,
        `slowdown`, `stream_order`, `stream_window`, `synchronous` (`Cluster.like`). Only the
        simulation knows synchronous SGD.

    Returns
    -------
    DataFrame
        One row per method and cluster: `method`, `workers`, `servers`, `steps_per_s` with the
        95 % interval `steps_per_s_low` to `steps_per_s_high` where the method gives one,
        `examples_per_s`, `sees` (what the method knew) and columns of the methods' own.

    Warns
    -----
    PrecisionWarning
        If `most_replications` did not reach the precision.

    Raises
    ------
    InputError
        If there are no workers, servers or methods, a method is unknown, or a cluster is
        impossible.

    Examples
    --------
    >>> import asgd_model
    >>> profile = asgd_model.load_profile(
    ...     "data/profiles/cpu-0.15-300mbit-reno/googlenet_b4.profile.json.gz"
    ... )
    >>> curve = asgd_model.predict(profile, [1, 8], methods=["queueing"])
    >>> curve[["workers", "steps_per_s"]].round(2).values.tolist()
    [[1.0, 0.18], [8.0, 0.96]]
    """
    import pandas as pd

    sizes = list(workers)
    counts = list(servers) if isinstance(servers, Iterable) else [servers]
    for field, values in (("workers", sizes), ("servers", counts), ("methods", methods)):
        if not values:
            raise InputError("predict", "none", "at least one", field=field)
    for method in methods:
        if method not in METHODS:
            raise InputError("predict", method, f"one of {', '.join(METHODS)}", field="methods")
        if method != "simulation" and cluster.get("synchronous") is not None:
            expected = "simulation, the only method for synchronous SGD"
            raise InputError("predict", method, expected, field="methods")
    clusters = [Cluster.like(profile, size, count, **cluster) for count in counts for size in sizes]
    simulation = partial(
        simulator.predict,
        replications=replications,
        precision=precision,
        most_replications=most_replications,
        steps=steps,
        warm_up=warm_up,
        seed=seed,
    )
    known: dict[str, Callable[..., pd.DataFrame]] = {
        "simulation": simulation,
        "queueing": asgd.predict,
        "queueing_overlap": overlap.predict,
    }
    tables = []
    for method in methods:
        function = known.get(method) or baseline(method)
        table = function(profile, clusters, measured)
        table.insert(0, "method", method)
        batch = profile.metadata.batch_size
        table.insert(6, "examples_per_s", table["steps_per_s"] * batch)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
