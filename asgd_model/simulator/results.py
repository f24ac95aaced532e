"""What a simulation found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.measurements import measurement_window

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
    op_start, op_end : ndarray of float64, shape (recorded steps, ops)
        Seconds at which the operations of the recorded steps started and ended.
    """

    batch_size: int
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    warm_up: int
    busy: NDArray[np.float64]
    num_workers: int
    events: int
    op_start: NDArray[np.float64]
    op_end: NDArray[np.float64]

    @property
    def window(self) -> tuple[float, float]:
        """First and last second of the measurement window (`measurement_window`)."""
        return measurement_window(self.start, self.end, self.warm_up)

    @property
    def steps_per_s(self) -> float:
        """Throughput of all workers together: steps ended in the window over its length."""
        first, last = self.window
        return float(((self.end > first) & (self.end <= last)).sum() / (last - first))

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
