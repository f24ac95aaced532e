"""Measurements of a job: steps of some or all of its workers on the emulated cluster."""

from __future__ import annotations

import datetime
import math
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    model_validator,
)

from asgd_model.baselines.networks import architecture
from asgd_model.capture import reduce_capture
from asgd_model.measurements import measurement_window, run_throughput
from asgd_model.testbed.emulation import PORT, Emulation, Usage
from asgd_model.testbed.machine import SpeedProbe, check, foreign_seconds, this_machine
from asgd_model.testbed.platform import Platform
from asgd_model.testbed.protocol import Initialize, Policy, Run, Save, Training
from asgd_model.testbed.sniffer import captured, require_tools

if TYPE_CHECKING:
    import pandas as pd

Report = Callable[[str], None]
"""Is told of the progress, a line at a time."""

_REPORT_SECONDS = 15.0
_LEAD = 0.5
"""Seconds from the command to run steps to the first start."""


def _name_network(name: str) -> str:
    return architecture(name).name


NetworkName = Annotated[str, AfterValidator(_name_network)]
BatchSize = Annotated[int, Field(ge=1, le=100_000, description="examples per step")]
Nodes = Annotated[int, Field(ge=1, le=1000)]
Repeat = Annotated[int, Field(ge=1, le=1000)]
Steps = Annotated[int, Field(ge=2, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Configuration(BaseModel):
    """A job, the number of its nodes, and how it is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dnn: NetworkName
    batch_size: BatchSize
    workers: Nodes
    servers: Nodes = Field(default=1, description="parameter servers")
    policy: Policy = Field(default="default", description="order in which variables are received")
    repeat: Repeat = Field(default=1, description="number of the repetition")
    steps: Steps = Field(default=20, description="the run ends with the first worker's last")
    warm_up: int = Field(default=2, ge=1, description="steps of each worker that do not count")
    seed: Seed = Field(default=0, description="of starts, images and initial values")
    starts: tuple[NonNegativeFloat, ...] | None = Field(
        default=None, description="seconds at which workers start; by default at random"
    )

    @model_validator(mode="after")
    def _check_starts(self) -> Configuration:
        if self.starts is not None and len(self.starts) != self.workers:
            raise ValueError(f"a start for each of {self.workers} workers")
        return self

    def key(self, platform: Platform) -> dict[str, str | int]:
        """The columns that identify the run, `asgd_model.measurements.RUN`."""
        return {
            "platform": platform.name,
            "dnn": self.dnn,
            "batch_size": self.batch_size,
            "parameter_servers": self.servers,
            "workers": self.workers,
            "policy": self.policy,
            "repeat": self.repeat,
        }


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a run found.

    Attributes
    ----------
    row : dict
        The run's row in the measurements of its platform.
    steps : DataFrame
        Columns `worker`, `step`, `start`, `end` (seconds from the run's first step), `traced`.
    """

    row: dict[str, Any]
    steps: pd.DataFrame

    @property
    def foreign_load(self) -> float:
        """Cores that others used or the hypervisor took away, mean over the window."""
        return float(self.row["foreign_load"])


class RunningJob:
    """The processes of one job on the emulated cluster; a context manager.

    Entering starts all processes, gives the variables their values and lets each worker run a
    step, without CPU quotas, which would only make that slow. Then runs with any number of the
    workers can be measured one after the other; the others idle meanwhile.

    Parameters
    ----------
    platform : Platform
        The cluster.
    configuration : Configuration
        The job, with as many workers as any of its runs will have.
    logs : Path
        Folder for what the nodes' processes print.
    report : callable
        Is told of the progress.

    Raises
    ------
    TestbedError
        On entering, if the machine cannot, or a process fails.
    """

    def __init__(
        self, platform: Platform, configuration: Configuration, logs: Path, report: Report
    ) -> None:
        self.platform = platform
        self.configuration = configuration
        self._report = report
        self._cluster = Emulation(platform, configuration.workers, configuration.servers, logs)
        self._framework = ""
        self._alone = math.nan

    def __enter__(self) -> RunningJob:
        job, report = self.configuration, self._report
        network = architecture(job.dnn)
        parameters = network.parameters + network.statistics
        check(self.platform, job.workers, job.servers, parameters)
        with ExitStack() as stack:
            cluster = stack.enter_context(self._cluster)
            report(f"starting {job.workers} workers and {job.servers} servers of {job.dnn}")
            cluster.enforce_quotas(False)
            self._framework = cluster.start(
                Training(dnn=job.dnn, batch_size=job.batch_size, policy=job.policy, seed=job.seed)
            )
            cluster.obey(cluster.workers[:1], Initialize())
            report("first steps, without quotas")
            cluster.obey(cluster.workers, Run(count=1))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def first_address(self) -> str:
        """IPv4 address of the first worker."""
        return self._cluster.network.address(self._cluster.workers[0])

    def measure(self, configuration: Configuration, traces: Path | None = None) -> Measurement:
        """Run a configuration of the job and measure it.

        Unless told when, each worker starts at random, evenly spread over the time of one step
        alone: nearly constant phases keep their offsets for long.

        Parameters
        ----------
        configuration : Configuration
            What runs; of this job, with at most its number of workers.
        traces : Path, optional
            Folder for RunMetadata, a subfolder per worker: of every other step of a single
            worker, of every step of several.

        Raises
        ------
        TestbedError
            If the run fails; the job is of no use then.
        InputError
            If the run had too few steps to measure.
        """
        machine = this_machine()
        cluster = self._cluster
        workers = cluster.workers[: configuration.workers]
        every = 0 if traces is None else 2 if configuration.workers == 1 else 1
        cluster.network.reshape([*cluster.servers, *workers])
        if every:
            cluster.obey(workers, Run(count=1, trace_every=1, graphs=True))
        cluster.enforce_quotas()
        starts = self._starts(configuration)
        log = _Log(cluster, configuration, self._report)
        with SpeedProbe() as probe:
            log.record(starts, every)
        cluster.enforce_quotas(False)
        log.finish()
        if traces is not None:
            for node in workers:
                skip = 1 + -(-configuration.warm_up // every)
                cluster.obey([node], Save(folder=str(traces / node), skip=skip))
        row = {
            **configuration.key(self.platform),
            **log.throughput(),
            **log.usage(),
            "seed": configuration.seed,
            "framework": self._framework,
            **machine.as_columns(),
            "machine_speed": log.speed(probe),
            "date": datetime.date.today().isoformat(),
        }
        return Measurement(row, log.steps())

    def capture(self, configuration: Configuration, path: Path, traces: Path | None = None) -> None:
        """Capture the packets of the first worker's steps after its warm-up.

        The other workers, if any, run meanwhile. The capture begins and ends while the first
        worker is idle. The job is of no use afterwards.

        Parameters
        ----------
        configuration : Configuration
            What runs; of this job, with at most its number of workers.
        path : Path
            The file to write, for `asgd_model.capture.reduce_capture`.
        traces : Path, optional
            Folder for RunMetadata of the captured steps, in a subfolder for the worker.

        Raises
        ------
        TestbedError
            If the run fails, or packets were lost.
        """
        cluster, known = self._cluster, configuration
        first, *others = cluster.workers[: known.workers]
        cluster.network.reshape([*cluster.servers, first, *others])
        if traces is not None:
            cluster.obey([first], Run(count=1, trace_every=1, graphs=True))
        starts = self._starts(known)
        cluster.enforce_quotas()
        begin = time.monotonic() + _LEAD
        for node, start in zip(others, starts[1:].tolist(), strict=True):
            # More than enough: nobody waits for them to end.
            cluster.tell(node, Run(count=2 * (known.warm_up + known.steps), at=begin + start))
        self._report(f"{known.warm_up} steps to warm up")
        cluster.obey([first], Run(count=known.warm_up, at=begin + float(starts[0])))
        self._report(f"capturing {known.steps} steps of {first}")
        with captured(cluster.network, first, PORT, path):
            every = 0 if traces is None else 1
            cluster.obey([first], Run(count=known.steps, trace_every=every))
        if traces is not None:
            cluster.obey([first], Save(folder=str(traces / first), skip=1))

    def _starts(self, configuration: Configuration) -> NDArray[np.float64]:
        """Seconds at which the workers begin."""
        if configuration.starts is not None:
            return np.array(configuration.starts)
        if configuration.workers == 1:
            return np.zeros(1)
        if math.isnan(self._alone):
            self._report("one step of the first worker alone")
            begin = time.monotonic()
            self._cluster.obey(self._cluster.workers[:1], Run(count=1))
            self._alone = time.monotonic() - begin
        key = configuration.seed, configuration.repeat, configuration.workers
        return np.random.default_rng(key).uniform(0.0, self._alone, configuration.workers)


def measure(
    platform: Platform,
    configuration: Configuration,
    logs: Path,
    report: Report,
    traces: Path | None = None,
) -> Measurement:
    """Start a job, measure one run of it as `RunningJob.measure` does, and end it."""
    with RunningJob(platform, configuration, logs, report) as job:
        return job.measure(configuration, traces)


def capture(
    platform: Platform,
    configuration: Configuration,
    logs: Path,
    report: Report,
    traces: Path | None = None,
) -> pd.DataFrame:
    """Start a job, capture steps of its first worker as `RunningJob.capture` does, and end it.

    Returns
    -------
    DataFrame
        The frames, see `asgd_model.capture`.
    """
    require_tools()
    with tempfile.TemporaryDirectory() as folder:
        packets = Path(folder) / "packets.pcap"
        with RunningJob(platform, configuration, logs, report) as job:
            job.capture(configuration, packets, traces)
        report(f"reducing {packets.stat().st_size / 1e6:.0f} MB of packets")
        return reduce_capture(packets, job.first_address, PORT)


@dataclass(frozen=True)
class _Counters:
    """What had been used at some time."""

    time: float
    used: dict[str, Usage]
    foreign: float


class _Log:
    """The steps of a run, and what its nodes used in the measurement window."""

    def __init__(self, cluster: Emulation, configuration: Configuration, report: Report) -> None:
        self._cluster = cluster
        self._configuration = configuration
        self._report = report
        shape = configuration.workers, configuration.steps
        self._start = np.full(shape, np.nan)
        self._end = np.full(shape, np.nan)
        self._traced = np.zeros(shape, dtype=bool)
        self._ended = np.zeros(configuration.workers, dtype=np.int64)
        self._workers = cluster.workers[: configuration.workers]
        self._running = set(self._workers)
        self._counters: list[_Counters] = []

    def record(self, starts: NDArray[np.float64], trace_every: int) -> None:
        """Run steps until the first worker has ended its last one; traced ones to the end."""
        steps, warm_up = self._configuration.steps, self._configuration.warm_up
        begin = reported = time.monotonic() + _LEAD
        for node, start in zip(self._workers, starts.tolist(), strict=True):
            command = Run(count=steps, at=begin + start, trace_every=trace_every)
            self._cluster.tell(node, command)
        for node, message in self._cluster.messages():
            if message["event"] == "done":
                self._running.remove(node)
                if not self._running or not trace_every:
                    break
                continue
            self._note(self._workers.index(node), message)
            first, last = int(self._ended.max()), int(self._ended.min())
            if (len(self._counters) == 0 and last >= warm_up) or (
                len(self._counters) == 1 and first == steps
            ):
                self._count()
            if (now := time.monotonic()) > reported + _REPORT_SECONDS and first < steps:
                reported = now
                left = (now - begin) / first * (steps - first)
                self._report(f"step {first} of {steps}; about {left:.0f} s left")

    def finish(self) -> None:
        """Wait for the workers that still run steps, which do not count."""
        if self._running:
            self._cluster.wait("done", self._running)

    def throughput(self) -> dict[str, Any]:
        """Columns of the throughput."""
        known = self._configuration
        first, last = measurement_window(self._start, self._end, known.warm_up)
        rate, low, high = run_throughput(self._start, self._end, known.warm_up)
        begin = np.nanmin(self._start)
        return {
            "warm_up_s": round(float(first - begin), 3),
            "measured_s": round(last - first, 3),
            "steps": int(((self._end > first) & (self._end <= last)).sum()),
            "steps_per_s": round(rate, 6),
            "steps_per_s_low": round(low, 6),
            "steps_per_s_high": round(high, 6),
            "examples_per_s": round(rate * known.batch_size, 6),
        }

    def usage(self) -> dict[str, Any]:
        """Columns of what was used: by the busiest server, and by the workers on average."""
        before, after = self._counters
        seconds = after.time - before.time
        rates = {
            node: np.array([used.cpu, 8.0 * used.sent, 8.0 * used.received]) / seconds
            for node, used in ((node, after.used[node] - before.used[node]) for node in after.used)
        }
        server = np.max([rates[node] for node in self._cluster.servers], axis=0)
        worker = np.mean([rates[node] for node in self._workers], axis=0)
        return {
            "server_cores": round(float(server[0]), 4),
            "worker_cores": round(float(worker[0]), 4),
            "server_sent_bit_s": round(float(server[1])),
            "server_received_bit_s": round(float(server[2])),
            "foreign_load": round((after.foreign - before.foreign) / seconds, 4),
        }

    def speed(self, probe: SpeedProbe) -> float:
        """Speed of the machine's CPUs in the window, MB hashed per second of CPU time."""
        before, after = self._counters
        return round(probe.speed(before.time, after.time), 1)

    def steps(self) -> pd.DataFrame:
        """All ended steps, one row each."""
        import pandas as pd

        worker, step = np.nonzero(~np.isnan(self._end))
        begin = np.nanmin(self._start)
        return pd.DataFrame(
            {
                "worker": worker,
                "step": step,
                "start": np.round(self._start[worker, step] - begin, 6),
                "end": np.round(self._end[worker, step] - begin, 6),
                "traced": self._traced[worker, step],
            }
        )

    def _note(self, worker: int, message: dict[str, Any]) -> None:
        step = self._ended[worker]
        self._start[worker, step] = message["start"]
        self._end[worker, step] = message["end"]
        self._traced[worker, step] = message["traced"]
        self._ended[worker] += 1

    def _count(self) -> None:
        cluster = self._cluster
        used = {node: cluster.usage(node) for node in cluster.nodes}
        self._counters.append(_Counters(time.monotonic(), used, foreign_seconds()))
