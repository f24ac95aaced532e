"""Make data/profiles and data/measurements from data/raw. See data/README.md."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd

from asgd_model.calibration import (
    communication_cost,
    fit_stream_window,
    fit_to_untraced,
    link_goodput,
    newcomer_share,
)
from asgd_model.files import write_bytes
from asgd_model.measurements import (
    RUN,
    load_steps,
    measurement_window,
    run_throughput,
    steps_of_run,
)
from asgd_model.profile import Calibration, Metadata, Profile, load_profile, save_profile
from asgd_model.tensorflow_trace import read_run_metadata

DATA = Path(__file__).parent
SAMPLE = DATA / "raw" / "cpu-0.15-300mbit"
BULK = DATA / "raw" / "bulk-0.15-300mbit" / "two_flows.csv"
PLATFORMS = {"reno-256kb": "cpu-0.15-300mbit-reno", "bbr-1mb": "cpu-0.15-300mbit-bbr"}
PROFILED = "reno-256kb"  # the transport on which the single worker was traced
WARM_UP = 2
DATE = "2026-12-01"
FRAMEWORK = "TensorFlow 2.21.0"
NETWORK_BOUND = "alexnet"
CAMPAIGNS = {"network": "alexnet_b8.profile.json.gz"}
"""Platforms of the testbed, and which of their jobs is bound by the network."""


def traces(dnn: str, metadata: Metadata) -> Profile:
    """Read the traced steps of one network."""
    return read_run_metadata(sorted((SAMPLE / dnn).glob("*.pb.gz")), metadata)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table all or nothing, the same bytes for the same table."""
    buffer = io.BytesIO()
    compression = {"method": "gzip", "mtime": 0} if path.suffix == ".gz" else None
    table.to_csv(buffer, index=False, lineterminator="\n", compression=compression)
    write_bytes(path, buffer.getvalue())


def rename(table: pd.DataFrame) -> pd.DataFrame:
    """Use the project's column names, and keep the runs that were not traced."""
    table = table[table["traced"] == 0].copy()
    table["platform"] = table["transport"].map(PLATFORMS)
    return table.assign(parameter_servers=1, policy="default")


def make_measurements(runs: pd.DataFrame, steps: pd.DataFrame, folder: Path) -> None:
    """Write the measurements: a row per run, and a row per step."""
    for platform, chosen in rename(runs).groupby("platform"):
        rows = []
        own = rename(steps).query("platform == @platform")
        for _, run in chosen.iterrows():
            same = np.logical_and.reduce([own[c] == run[c] for c in RUN])
            start, end = steps_of_run(own[same])
            first, last = measurement_window(start, end, WARM_UP)
            throughput, low, high = run_throughput(start, end, WARM_UP)
            counted = (end > first) & (end <= last)
            rows.append(
                {
                    **run[list(RUN)],
                    "warm_up_s": round(first, 3),
                    "measured_s": round(last - first, 3),
                    "steps": int(counted.sum()),
                    "steps_per_s": round(throughput, 5),
                    "steps_per_s_low": round(low, 5),
                    "steps_per_s_high": round(high, 5),
                    "examples_per_s": round(throughput * run["batch_size"], 5),
                    "server_cores": run["server_cores"],
                    "worker_cores": run["worker_cores_mean"],
                    "server_sent_bit_s": round(run["server_sent_mbit_s"] * 1e6, 1),
                    "server_received_bit_s": round(run["server_received_mbit_s"] * 1e6, 1),
                    "framework": FRAMEWORK,
                    "date": DATE,
                }
            )
        write_csv(pd.DataFrame(rows), folder / f"{platform}.csv")
        columns = [*RUN, "worker", "step", "start", "end"]
        write_csv(own[columns], folder / f"{platform}.steps.csv.gz")


def one_worker_step_times(steps: pd.DataFrame, dnn: str) -> pd.Series:
    """Seconds of the steps of the untraced single worker."""
    own = steps.query(
        "transport == @PROFILED and workers == 1 and traced == 0 and dnn == @dnn"
        " and step >= @WARM_UP"
    )
    return own["end"] - own["start"]


def bulk_newcomer_share() -> float:
    """Share of the second of two bulk flows, over all downloads that met."""
    trials = pd.read_csv(BULK).pivot(index=["run", "step"], columns="worker")
    offset = trials["start"][1] - trials["start"][0]
    first = trials["download"][0]
    met = (offset < first) & (offset < 0.9 * first.min())
    return newcomer_share(offset[met], first[met], first.min())


def make_profiles(runs: pd.DataFrame, steps: pd.DataFrame, folder: Path) -> None:
    """Write the profiles: the traced steps, with what one worker tells of the platform."""
    alone = runs.query("transport == @PROFILED and workers == 1 and traced == 0").set_index("dnn")
    plain = {
        dnn: traces(
            dnn,
            Metadata(
                dnn=dnn,
                batch_size=int(alone.loc[dnn, "batch_size"]),
                parameters=int(alone.loc[dnn, "parameters"]),
                platform=PLATFORMS[PROFILED],
                framework=FRAMEWORK,
                date=DATE,
                source=f"data/raw/cpu-0.15-300mbit/{dnn}",
                link_rate=286.6e6,
                worker_cores=0.15,
                server_cores=0.5,
                worker_threads=2,
                server_threads=2,
            ),
        )
        for dnn in ("alexnet", "googlenet")
    }
    untraced = {dnn: one_worker_step_times(steps, dnn) for dnn in plain}
    server_cpu = [alone.loc[dnn, "server_cores"] / alone.loc[dnn, "steps_per_s"] for dnn in plain]
    cost = communication_cost(list(plain.values()), server_cpu)
    goodput = link_goodput(plain[NETWORK_BOUND])
    known_profiles = {}
    for dnn, profile in plain.items():
        known = profile.metadata.model_copy(
            update={
                "link_rate": round(goodput, -5),
                "stream_window": fit_stream_window(profile, goodput),
                "calibration": Calibration(
                    worker_send=cost,
                    worker_receive=cost,
                    server_send=cost,
                    server_receive=cost,
                    newcomer_share=round(bulk_newcomer_share(), 3),
                ),
            }
        )
        known_profiles[dnn] = traces(dnn, known)
    for dnn, profile in fit_to_untraced(known_profiles, untraced, NETWORK_BOUND).items():
        name = f"{dnn}_b{profile.metadata.batch_size}.profile.json.gz"
        save_profile(profile, folder / PLATFORMS[PROFILED] / name)


def calibrate_profiles(platform: str, network_bound: str, folder: Path) -> None:
    """Calibrate a campaign's profiles to the speed of one worker in its measured runs."""
    steps = load_steps(DATA / "measurements" / f"{platform}.steps.csv.gz")
    alone = steps.query("workers == 1 and step >= @WARM_UP")
    profiles, untraced = {}, {}
    for path in sorted((DATA / "profiles" / platform).glob("*.profile.json.gz")):
        profile = load_profile(path)
        own = alone.query("dnn == @profile.metadata.dnn")
        own = own.query("batch_size == @profile.metadata.batch_size")
        profiles[path.name] = profile
        untraced[path.name] = own["end"] - own["start"]
    for name, profile in fit_to_untraced(profiles, untraced, network_bound).items():
        save_profile(profile, folder / platform / name)


def main(target: Path = DATA) -> None:
    """Write the folders measurements and profiles in `target`."""
    runs = pd.read_csv(SAMPLE / "measured.csv")
    steps = pd.read_csv(SAMPLE / "steps.csv.gz")
    make_measurements(runs, steps, target / "measurements")
    make_profiles(runs, steps, target / "profiles")
    for platform, network_bound in CAMPAIGNS.items():
        calibrate_profiles(platform, network_bound, target / "profiles")


if __name__ == "__main__":
    main()
