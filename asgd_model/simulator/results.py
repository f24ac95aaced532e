"""What a simulation found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.measurements import measurement_window, run_throughput
from asgd_model.simulator.steady_state import SteadyState, steady_state

if TYPE_CHECKING:
    import pandas as pd

_RESOURCES = ("cpu", "send", "receive")
"""Resources of a node, in the engine's order."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """One simulated run.

    Attributes
    ----------
    batch_size : int
        Examples per step.
    start, end : ndarray of float64, shape (workers, steps)
        Seconds at which each step began and ended; NaN for steps not reached.
    dropped : ndarray of bool, shape (workers, steps)
        Steps whose gradients came too late for their synchronous update, and had no effect.
    updates : ndarray of float64, shape (updates,), or None
        Seconds at which synchronous updates were made; None if the job is asynchronous.
    warm_up : int
        Steps per worker before the measurement window.
    capacity : ndarray of float64, shape (nodes, 3)
        Cores of each node, and the bytes/s that it can send and receive; workers first, then
        servers.
    used : ndarray of float64, shape (nodes, 3)
        Core seconds of each node, and the bytes that it sent and received, in the whole run.
    used_in_window : ndarray of float64, shape (nodes, 3)
        The same in the measurement window.
    bins : ndarray of float64, shape (edges,)
        Seconds at which the bins of `utilisation_over_time` begin and end.
    used_by_bin : ndarray of float64, shape (edges, nodes, 3)
        As `used`, from the beginning of the run to each of `bins`; NaN after the end of the run.
    num_workers : int
        Number of workers among the nodes.
    events : int
        Events that the engine processed.
    drawn : ndarray of int64, shape (workers, steps)
        The profiled step that each step repeats.
    placement : ndarray of int32, shape (ops,)
        The server of each operation, -1 for the worker's.
    recorded : tuple of (worker, step)
        The steps whose operations' times were kept.
    op_start, op_end : ndarray of float64, shape (recorded steps, ops)
        Seconds at which the operations of the recorded steps started and ended. A transfer
        starts when it is asked for or there to be sent, a computation when it gets a thread.
    """

    batch_size: int
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    dropped: NDArray[np.bool_]
    updates: NDArray[np.float64] | None
    warm_up: int
    capacity: NDArray[np.float64]
    used: NDArray[np.float64]
    used_in_window: NDArray[np.float64]
    bins: NDArray[np.float64]
    used_by_bin: NDArray[np.float64]
    num_workers: int
    events: int
    drawn: NDArray[np.int64]
    placement: NDArray[np.int32]
    recorded: tuple[tuple[int, int], ...]
    op_start: NDArray[np.float64]
    op_end: NDArray[np.float64]

    @property
    def window(self) -> tuple[float, float]:
        """First and last second of the measurement window.

        As of a measured run (`measurement_window`). For synchronous SGD, from the first update
        after every worker's warm-up, or else the beginning, to the last update.

        Raises
        ------
        InputError
            If no time is left between the two.
        """
        if self.updates is None:
            return measurement_window(self.start, self.end, self.warm_up)
        updates = self.updates
        if self.warm_up > 0:
            updates = updates[updates >= self.end[:, self.warm_up - 1].max()]
        else:
            updates = np.concatenate([[self.start[:, 0].max()], updates])
        if len(updates) < 2:
            expected = "fewer, so that there is an update after all workers have ended them"
            raise InputError("simulate", self.warm_up, expected, field="warm_up")
        return float(updates[0]), float(updates[-1])

    @property
    def _counted(self) -> NDArray[np.bool_]:
        """Whether a step ended within the window and was not dropped, shape (workers, steps)."""
        first, last = self.window
        return (self.end > first) & (self.end <= last) & ~self.dropped

    @property
    def steps_per_s(self) -> float:
        """Throughput of all workers together.

        As `asgd_model.measurements.run_throughput`; of synchronous SGD, the steps that the updates
        in the window used, over its length.
        """
        if self.updates is None:
            return run_throughput(self.start, self.end, self.warm_up)[0]
        first, last = self.window
        return float(self._counted.sum() / (last - first))

    @property
    def busy(self) -> NDArray[np.float64]:
        """Fraction of each node's CPU, sending and receiving link in use during the window.

        Shape (nodes, 3); workers first, then servers.
        """
        first, last = self.window
        return self.used_in_window / (self.capacity * (last - first))

    @property
    def examples_per_s(self) -> float:
        """Examples that all workers together train on per second."""
        return self.steps_per_s * self.batch_size

    @property
    def step_times(self) -> NDArray[np.float64]:
        """Seconds of every step that ended within the window, in no particular order.

        Without dropped steps, and without the time that a worker waits for the others before its
        next synchronous step.
        """
        return (self.end - self.start)[self._counted]

    def steady_state(self, batches: int = 20) -> SteadyState:
        """When the run became steady, and its throughput from then on.

        The warm-up is detected (`warm_up_length`), whatever `warm_up` says; the interval is from
        means of batches of steps that follow each other (`batch_means`). It is about this run: it
        does not contain what other starts would change.

        Parameters
        ----------
        batches : int
            Number of batches, at least 2.
        """
        ends = self.end[self.end <= np.nanmin(self.end[:, -1])]
        return steady_state(np.sort(ends), self.num_workers, batches)

    def staleness(self) -> NDArray[np.int64]:
        """Updates by other workers that each gradient missed.

        Counted at the granularity of steps: how many steps of other workers ended after a step
        began, when its worker asked for the parameters, and no later than it ended itself. A
        worker's steps follow each other without a gap, so that each update is missed by exactly
        one gradient of every other worker. Synchronous updates miss none.

        Returns
        -------
        ndarray of int64, shape (steps,)
            One value for every step of `step_times`, in their order.
        """
        chosen = self._counted
        if self.updates is not None:
            return np.zeros(chosen.sum(), dtype=np.int64)
        ends = np.sort(self.end[~np.isnan(self.end)])
        until_end = np.searchsorted(ends, self.end[chosen], side="right")
        until_start = np.searchsorted(ends, self.start[chosen], side="right")
        return (until_end - until_start - 1).astype(np.int64)  # 1 is the step itself

    def utilisation(self) -> pd.DataFrame:
        """Fraction of each resource in use during the measurement window.

        Returns
        -------
        DataFrame
            Index `node` ("worker 0", ..., "server 0", ...); columns `cpu`, `send`, `receive`.
        """
        import pandas as pd

        return pd.DataFrame(
            self.busy, index=pd.Index(self._nodes(), name="node"), columns=list(_RESOURCES)
        )

    def utilisation_over_time(self) -> pd.DataFrame:
        """Fraction of each resource in use, over time.

        Returns
        -------
        DataFrame
            One row per bin that the run has got through, with the index `begin`, `end` (seconds);
            one column per resource: "worker 0 cpu", "worker 0 send", "worker 0 receive", ...,
            "server 0 cpu", ...

        Raises
        ------
        InputError
            If the run was simulated without `bins`.
        """
        import pandas as pd

        if len(self.bins) < 2:
            raise InputError("result", self.bins.tolist(), "the edges of a bin", field="bins")
        length = np.diff(self.bins)
        busy = np.diff(self.used_by_bin, axis=0) / (self.capacity * length[:, None, None])
        ended = ~np.isnan(self.used_by_bin[1:, 0, 0])
        edges = [self.bins[:-1][ended], self.bins[1:][ended]]
        return pd.DataFrame(
            busy[ended].reshape(len(edges[0]), self.capacity.size),
            index=pd.MultiIndex.from_arrays(edges, names=["begin", "end"]),
            columns=[f"{node} {resource}" for node in self._nodes() for resource in _RESOURCES],
        )

    def _nodes(self) -> list[str]:
        servers = len(self.capacity) - self.num_workers
        nodes = [f"worker {index}" for index in range(self.num_workers)]
        return nodes + [f"server {index}" for index in range(servers)]

    def to_frame(self) -> pd.DataFrame:
        """Every ended step, one row each.

        Returns
        -------
        DataFrame
            Columns `worker`, `step`, `start`, `end` (seconds).
        """
        import pandas as pd

        worker, step = np.nonzero(~np.isnan(self.end))
        return pd.DataFrame(
            {
                "worker": worker,
                "step": step,
                "start": self.start[worker, step],
                "end": self.end[worker, step],
            }
        )


def by_role(busy: NDArray[np.float64], workers: int) -> dict[str, float]:
    """Utilisation of the busiest server's links and CPU and, in the mean, of the workers' CPUs.

    Parameters
    ----------
    busy : ndarray of float64, shape (nodes, 3)
        As `SimulationResult.busy`.
    workers : int
        Number of workers among the nodes.

    Returns
    -------
    dict
        `server_send`, `server_receive`, `server_cpu`, `worker_cpu`, each from 0 to 1.
    """
    cpu, send, receive = busy[workers:].max(axis=0)
    return {
        "server_send": float(send),
        "server_receive": float(receive),
        "server_cpu": float(cpu),
        "worker_cpu": float(busy[:workers, 0].mean()),
    }


def staleness_distribution(results: Sequence[SimulationResult]) -> pd.DataFrame:
    """How often gradients are how stale, over all runs with the same number of workers.

    Parameters
    ----------
    results : sequence of SimulationResult
        Simulated runs.

    Returns
    -------
    DataFrame
        Columns `workers`, `staleness` (updates by others, from 0 to the highest seen) and
        `fraction` of the steps in the runs' windows; the fractions add up to 1 for each number
        of workers.
    """
    import pandas as pd

    tables = []
    for workers in sorted({result.num_workers for result in results}):
        missed = [run.staleness() for run in results if run.num_workers == workers]
        counts = np.bincount(np.concatenate(missed))
        tables.append(
            pd.DataFrame(
                {
                    "workers": workers,
                    "staleness": np.arange(len(counts)),
                    "fraction": counts / counts.sum(),
                }
            )
        )
    return pd.concat(tables, ignore_index=True)
