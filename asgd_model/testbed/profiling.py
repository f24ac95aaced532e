"""The profile of a job: traced steps of a single worker."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from asgd_model.baselines.networks import architecture
from asgd_model.calibration import fit_stream_window, throttled_rate, tracing_overhead
from asgd_model.errors import InputError
from asgd_model.profile import Metadata, Profile
from asgd_model.tensorflow_trace import read_run_metadata
from asgd_model.testbed.calibration import PlatformCalibration
from asgd_model.testbed.run import Configuration, Measurement, RunningJob


def measure_profile(
    job: RunningJob,
    configuration: Configuration,
    calibration: PlatformCalibration,
    traces: Path | None = None,
) -> tuple[Profile, Measurement]:
    """Profile a job on one worker.

    Every other step is traced: the untraced ones in between tell what tracing costs.

    Parameters
    ----------
    job : RunningJob
        The job; its first worker is profiled.
    configuration : Configuration
        Of the job, with one worker; `steps` are to be traced after the warm-up.
    calibration : PlatformCalibration
        Of the platform.
    traces : Path, optional
        Folder to keep the RunMetadata in.

    Returns
    -------
    Profile, Measurement
        The measurement is of traced and untraced steps together.

    Raises
    ------
    InputError
        If the configuration has more than one worker.
    TestbedError
        If the run fails.
    """
    if configuration.workers != 1:
        raise InputError("measure_profile", configuration.workers, "one worker", field="workers")
    platform = job.platform
    steps = configuration.warm_up + 2 * configuration.steps
    with tempfile.TemporaryDirectory() as temporary:
        folder = traces or Path(temporary)
        for left in (folder / "worker0").glob("*.pb.gz"):  # by a profile that was interrupted
            left.unlink()
        run = configuration.model_copy(update={"steps": steps})
        measurement = job.measure(run, folder)
        paths = sorted((folder / "worker0").glob("*.pb.gz"))
        network = architecture(configuration.dnn)
        metadata = Metadata(
            dnn=network.name,
            batch_size=configuration.batch_size,
            parameters=network.parameters,
            platform=platform.name,
            framework=measurement.row["framework"],
            date=measurement.row["date"],
            source="asgd-model testbed run --profile",
            link_rate=calibration.links.rate,
            worker_cores=platform.worker.cores,
            server_cores=platform.server.cores,
            worker_threads=platform.worker.inter_op_threads,
            server_threads=platform.server.inter_op_threads,
            machine_speed=measurement.row["machine_speed"],
            calibration=calibration.calibration,
        )
        profile = read_run_metadata(paths, metadata)
    window = fit_stream_window(profile, metadata.link_rate)
    profile = replace(profile, metadata=metadata.model_copy(update={"stream_window": window}))
    throttled = profile.recalibrated(throttled_rate=_throttled_rate(profile))
    table = measurement.steps
    untraced = table[~table["traced"] & (table["step"] >= configuration.warm_up)]
    overhead = tracing_overhead(throttled, untraced["end"] - untraced["start"])
    return throttled.recalibrated(tracing_overhead=round(overhead, 4)), measurement


def _throttled_rate(profile: Profile) -> float:
    """The rate while the worker computes, if the job tells it; a bound by its CPU does not."""
    try:
        return round(throttled_rate(profile), 3)
    except InputError:
        return 1.0
