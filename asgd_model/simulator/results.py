"""What a simulation found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.measurements import measurement_window, run_throughput

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """One simulated run.

    Attributes
    ----------
    batch_size : int
        Examples per step.
    start, end : ndarray of float64, shape (workers, steps)
        Seconds at which each step began and ended; NaN for steps not reached.
    warm_up : int
        Steps per worker before the measurement window.
    busy : ndarray of float64, shape (nodes, 3)
        Fraction of each node's CPU, sending link and receiving link in use during the window;
        workers first, then servers.
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
    warm_up: int
    busy: NDArray[np.float64]
    num_workers: int
    events: int
    drawn: NDArray[np.int64]
    placement: NDArray[np.int32]
    recorded: tuple[tuple[int, int], ...]
    op_start: NDArray[np.float64]
    op_end: NDArray[np.float64]

    @property
    def window(self) -> tuple[float, float]:
        """First and last second of the measurement window (`measurement_window`)."""
        return measurement_window(self.start, self.end, self.warm_up)

    @property
    def steps_per_s(self) -> float:
        """Throughput of all workers together, as `asgd_model.measurements.run_throughput`."""
        return run_throughput(self.start, self.end, self.warm_up)[0]

    @property
    def examples_per_s(self) -> float:
        """Examples that all workers together train on per second."""
        return self.steps_per_s * self.batch_size

    @property
    def step_times(self) -> NDArray[np.float64]:
        """Seconds of every step that ended within the window, in no particular order."""
        first, last = self.window
        chosen = (self.end > first) & (self.end <= last)
        return self.end[chosen] - self.start[chosen]

    def staleness(self) -> NDArray[np.int64]:
        """Updates by other workers that each gradient missed.

        Counted at the granularity of steps: how many steps of other workers ended after a step
        began, when its worker asked for the parameters, and no later than it ended itself. A
        worker's steps follow each other without a gap, so that each update is missed by exactly
        one gradient of every other worker.

        Returns
        -------
        ndarray of int64, shape (steps,)
            One value for every step that ended within the window, in the order of `step_times`.
        """
        first, last = self.window
        chosen = (self.end > first) & (self.end <= last)
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

        servers = len(self.busy) - self.num_workers
        nodes = [f"worker {index}" for index in range(self.num_workers)]
        nodes += [f"server {index}" for index in range(servers)]
        return pd.DataFrame(
            self.busy, index=pd.Index(nodes, name="node"), columns=["cpu", "send", "receive"]
        )

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
