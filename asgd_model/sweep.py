"""Parameter sweeps by simulation, on all cores of a machine or on a Dask cluster."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.files import read_json, write_json
from asgd_model.profile import Profile
from asgd_model.simulator.results import by_role
from asgd_model.simulator.simulation import simulate

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

_LIBRARY = Path(__file__).parent


class _Run(NamedTuple):
    """What tells one simulated run of a sweep from the others."""

    profile: str
    workers: int
    servers: int
    policy: str
    seed: int


_Results = Generator[tuple[_Run, dict[str, float]], None, None]
"""Runs and what they found, in the order in which they end."""


def sweep(
    profiles: Mapping[str, Profile],
    workers: Iterable[int],
    *,
    servers: Iterable[int] | None = None,
    policies: Iterable[str] = ("profile",),
    seeds: Iterable[int] = (0,),
    steps: int = 20,
    warm_up: int = 2,
    client: Client | None = None,
    folder: str | os.PathLike[str] | None = None,
    **cluster: Any,
) -> pd.DataFrame:
    """Simulate every combination of jobs, cluster sizes, policies and seeds.

    Parameters
    ----------
    profiles : mapping of str to Profile
        Jobs by the names that the table gives them.
    workers : iterable of int
        Numbers of workers.
    servers : iterable of int, optional
        Numbers of parameter servers; as many as each profiled job had by default.
    policies : iterable of str
        Orders of the streams of a connection, of `asgd_model.cluster.STREAM_ORDERS`.
    seeds : iterable of int
        One run each. What a run draws depends on its seed and the numbers of nodes only.
    steps, warm_up
        As for `asgd_model.simulate`.
    client : distributed.Client, optional
        Of the Dask cluster to simulate on, a task per run; all cores of this machine by default.
        The numbers are the same. When a worker of that cluster dies, others do its runs.
    folder : path-like, optional
        Where to keep what each run found, in a file of its own, written all or nothing when the
        run ends. Runs that are there already are not simulated again: an interrupted sweep goes
        on, and a larger one simulates what is new. A file counts for the same profile, arguments
        and code of this package only.
    **cluster
        What differs from the profiled cluster: `bandwidth`, `worker_cores`, `server_cores`,
        `stream_window` (`Cluster.like`).

    Returns
    -------
    DataFrame
        One row per run, in the order of the arguments: `profile`, `workers`, `servers`, `policy`,
        `seed`, `steps_per_s`, `examples_per_s`, and the utilisation of the busiest server's links
        and CPU and of the workers' CPUs in the mean: `server_send`, `server_receive`,
        `server_cpu`, `worker_cpu`, each from 0 to 1.

    Raises
    ------
    InputError
        If there is nothing to simulate, or a cluster or a run is impossible.
    """
    import pandas as pd

    axes: dict[str, list[Any]] = {
        "profiles": list(profiles),
        "workers": list(workers),
        "servers": [None] if servers is None else list(servers),
        "policies": list(policies),
        "seeds": list(seeds),
    }
    for field, values in axes.items():
        if not values:
            raise InputError("sweep", "none", "at least one", field=field)
    runs = [_checked(profiles, cluster, *values) for values in itertools.product(*axes.values())]

    simulate_run = partial(_simulate, steps=steps, warm_up=warm_up, cluster=cluster)
    files: dict[_Run, Path] = {}
    if folder is not None:
        names = _file_names(profiles, runs, [steps, warm_up, cluster])
        files = {run: Path(folder) / name for run, name in names.items()}
    found = {run: read_json(file)["result"] for run, file in files.items() if file.exists()}
    missing = [run for run in dict.fromkeys(runs) if run not in found]
    if client is None:
        results = _on_cores(simulate_run, profiles, missing)
    else:
        results = _on_cluster(client, simulate_run, profiles, missing)
    with contextlib.closing(results), tqdm(total=len(missing), unit="run", disable=None) as bar:
        for run, result in results:
            found[run] = result
            if run in files:
                write_json(files[run], {**run._asdict(), "result": result})
            bar.update()
    return pd.DataFrame([run._asdict() | found[run] for run in runs])


def _checked(
    profiles: Mapping[str, Profile],
    cluster: Mapping[str, Any],
    profile: str,
    workers: int,
    servers: int | None,
    policy: str,
    seed: int,
) -> _Run:
    """The run of these arguments if its cluster is possible."""
    nodes = Cluster.like(profiles[profile], workers, servers, stream_order=policy, **cluster)
    if not (isinstance(seed, int | np.integer) and seed >= 0):
        raise InputError("sweep", seed, "an integer of at least 0", field="seeds")
    return _Run(profile, len(nodes.workers), len(nodes.servers), policy, int(seed))


def _simulate(
    profile: Profile, run: _Run, steps: int, warm_up: int, cluster: Mapping[str, Any]
) -> dict[str, float]:
    """What one run finds; the columns of `sweep` that tell its result."""
    nodes = Cluster.like(profile, run.workers, run.servers, stream_order=run.policy, **cluster)
    seed = np.random.SeedSequence((run.seed, run.workers, run.servers))
    result = simulate(profile, nodes, steps=steps, warm_up=warm_up, seed=seed)
    throughput = {"steps_per_s": result.steps_per_s, "examples_per_s": result.examples_per_s}
    return throughput | by_role(result.busy, run.workers)


def _on_cores(
    simulate_run: Callable[[Profile, _Run], dict[str, float]],
    profiles: Mapping[str, Profile],
    runs: Sequence[_Run],
) -> _Results:
    # The engine runs without the interpreter's lock.
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        futures = {threads.submit(simulate_run, profiles[run.profile], run): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        threads.shutdown(cancel_futures=True)


def _on_cluster(
    client: Client,
    simulate_run: Callable[[Profile, _Run], dict[str, float]],
    profiles: Mapping[str, Profile],
    runs: Sequence[_Run],
) -> _Results:
    import distributed

    # Each profile is sent once, as the result of a task: Dask makes that again when the worker
    # that holds it dies, which it cannot do for scattered data.
    sent = {name: client.submit(_same, profile, pure=False) for name, profile in profiles.items()}
    futures = {client.submit(simulate_run, sent[run.profile], run, pure=False): run for run in runs}
    for future in distributed.as_completed(futures):
        yield futures[future], future.result()


def _same(profile: Profile) -> Profile:
    return profile


def _file_names(
    profiles: Mapping[str, Profile], runs: Iterable[_Run], arguments: list[Any]
) -> dict[_Run, str]:
    """A name for the file of each run that says all that its result depends on."""
    code = hashlib.sha256()
    for path in sorted(_LIBRARY.rglob("*.py")):
        code.update(path.read_bytes())
    contents = {name: _fingerprint(profile) for name, profile in profiles.items()}
    names = {}
    for run in runs:
        known = [code.hexdigest(), contents[run.profile], run, arguments]
        names[run] = hashlib.sha256(json.dumps(known, default=str).encode()).hexdigest() + ".json"
    return names


def _fingerprint(profile: Profile) -> str:
    total = hashlib.sha256(profile.metadata.model_dump_json().encode())
    total.update(json.dumps([profile.names, profile.kinds]).encode())
    tables: list[NDArray[Any]] = [profile.resources, profile.servers, profile.sizes]
    tables += [*profile.dependencies, profile.work, profile.start, profile.end]
    for table in tables:
        total.update(str(table.shape).encode() + table.tobytes())
    return total.hexdigest()
