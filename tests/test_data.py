"""The data that come with the project are what their raw files give, and can be true."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from asgd_model.capture import load_frames
from asgd_model.measurements import (
    RUN,
    load_measurements,
    load_steps,
    measurement_window,
    run_throughput,
    steps_of_run,
)
from asgd_model.profile import DOWNLINK, UPLINK, Profile, load_profile
from asgd_model.transport import transfers

DATA = Path(__file__).parents[1] / "data"
MEASUREMENTS = sorted((DATA / "measurements").glob("*.csv"))
STEPS = sorted((DATA / "measurements").glob("*.steps.csv.gz"))
PROFILES = sorted((DATA / "profiles").rglob("*.profile.json.gz"))
CAMPAIGNS = tuple(path.stem + "." for path in (DATA / "campaigns").glob("*.yaml"))
"""How the files begin that a campaign of the testbed measured."""
UNPROFILED = {"cpu-0.15-300mbit-bbr": "cpu-0.15-300mbit-reno"}
"""A platform without profiles, and the one whose jobs are the same."""
NOISE = 0.1
"""By how much runs of one job may differ by the speed of the machine alone: repeats of GoogLeNet
with one worker differed by 3 to 9 % with the speed of the host."""
WARM_UP = 2
"""Steps per worker that the measurements do not count."""


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """The script data/make.py."""
    spec = importlib.util.spec_from_file_location("make", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(make: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data made again from the raw files."""
    folder = tmp_path_factory.mktemp("data")
    make.main(folder)
    return folder


def test_all_files_are_made(made: Path) -> None:
    """No file is there that neither a campaign measured nor can be made again."""
    assert files(made / "profiles") == files(DATA / "profiles")
    measured = [name for name in files(DATA / "measurements") if not name.startswith(CAMPAIGNS)]
    assert files(made / "measurements") == measured


@pytest.mark.parametrize(
    "path",
    [path for path in (*MEASUREMENTS, *STEPS) if not path.name.startswith(CAMPAIGNS)],
    ids=lambda path: path.name,
)
def test_measurements_are_made_again(made: Path, path: Path) -> None:
    """Byte for byte; compressed files byte for byte of their content."""
    found, expected = (made / "measurements" / path.name).read_bytes(), path.read_bytes()
    if path.suffix == ".gz":
        found, expected = gzip.decompress(found), gzip.decompress(expected)
    assert found == expected


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_profiles_are_made_again(made: Path, path: Path) -> None:
    """Names and numbers; floating point may differ in the last digits from machine to machine."""
    found = load_profile(made / path.relative_to(DATA))
    expected = load_profile(path)
    assert (found.names, found.kinds) == (expected.names, expected.kinds)
    for name in ("resources", "servers", "sizes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert [row.tolist() for row in found.dependencies] == [
        row.tolist() for row in expected.dependencies
    ]
    for name in ("work", "start", "end"):
        left, right = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(left, right, rtol=0, atol=1.001e-9, err_msg=name)
    left, right = (p.metadata.model_dump(exclude={"calibration"}) for p in (found, expected))
    assert left == right
    left, right = (p.metadata.calibration.model_dump() for p in (found, expected))
    for name, value in right.items():
        assert left[name] == pytest.approx(value, rel=1e-9), name


# --- plausibility ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profiles() -> dict[tuple[str, str, int], Profile]:
    """The profiled jobs by platform, network and batch size."""
    loaded: dict[str, list[Profile]] = {path.parent.name: [] for path in PROFILES}
    for path in PROFILES:
        loaded[path.parent.name].append(load_profile(path))
    return {
        (platform, profile.metadata.dnn, profile.metadata.batch_size): profile
        for platform, found in loaded.items()
        for profile in found
    }


def test_there_are_data() -> None:
    """The tests below look at every file: they would pass if there were none."""
    assert len(PROFILES) >= 2
    assert len(MEASUREMENTS) >= 2
    assert len(STEPS) == len(MEASUREMENTS)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_profiles_are_plausible(path: Path) -> None:
    """Each parameter moves as four bytes in each direction; nothing takes longer than the step.

    What the links carried does not exceed their rate, nor what the CPUs did their cores.
    """
    profile = load_profile(path)
    known = profile.metadata
    assert path.parent.name == known.platform
    assert path.name == f"{known.dnn}_b{known.batch_size}.profile.json.gz"
    assert known.parameters is not None
    moved = np.array([profile.bytes_moved(resource) for resource in (DOWNLINK, UPLINK)])
    assert moved == pytest.approx(4 * known.parameters, rel=0.01)
    step_time = profile.step_times.mean()
    assert (8.0 * moved / step_time < known.link_rate).all()
    work = profile.work.sum(axis=1).mean()
    assert work / step_time < known.worker_cores + known.server_cores
    assert profile.steps >= 5
    assert profile.step_times.std() < 0.1 * step_time


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: path.name)
def test_runs_are_plausible(path: Path, profiles: dict[tuple[str, str, int], Profile]) -> None:
    """W workers make no more steps than W times one, but for noise, nor than the link lets."""
    runs = load_measurements(path)
    assert set(runs["platform"]) == {path.stem}
    assert runs["examples_per_s"].to_numpy() == pytest.approx(
        (runs["steps_per_s"] * runs["batch_size"]).to_numpy(), rel=1e-3
    )
    for (dnn, batch_size), job in runs.groupby(["dnn", "batch_size"]):
        alone = job.loc[job["workers"] == 1, "steps_per_s"].mean()
        assert (job["steps_per_s"] <= (1.0 + NOISE) * job["workers"] * alone).all()
        profile = profiles[UNPROFILED.get(path.stem, path.stem), dnn, batch_size]
        for resource in (DOWNLINK, UPLINK):
            rate = 8.0 * profile.bytes_moved(resource) * job["steps_per_s"]
            most = job["parameter_servers"] * profile.metadata.link_rate
            assert (rate <= 1.01 * most).all()  # the rate is a mean over downloads


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.name)
def test_steps_are_those_of_the_runs(path: Path) -> None:
    """Every run has its steps, one after the other, and they give its throughput."""
    steps = load_steps(path)
    runs = load_measurements(path.with_name(path.name.replace(".steps.csv.gz", ".csv")))
    by_run = {run: rows for run, rows in steps.groupby(list(RUN))}
    assert set(by_run) == set(runs[list(RUN)].itertuples(index=False, name=None))
    for run in runs.to_dict("records"):
        own = by_run[tuple(run[name] for name in RUN)]
        assert own["worker"].nunique() == run["workers"]
        start, end = steps_of_run(own)
        assert np.nanmin(start) == 0.0
        assert not (start[:, 1:] < end[:, :-1] - 1e-9).any(), "steps of a worker overlap"
        first, last = measurement_window(start, end, WARM_UP)
        assert (first, last - first) == pytest.approx(
            (run["warm_up_s"], run["measured_s"]), abs=1e-3
        )
        found = run_throughput(start, end, WARM_UP)
        stored = (run["steps_per_s"], run["steps_per_s_low"], run["steps_per_s_high"])
        assert found == pytest.approx(stored, abs=1e-5)


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("raw/*/*.frames.csv.gz")), ids=lambda path: path.name
)
def test_captured_steps_are_whole(path: Path) -> None:
    """Every captured step moves the same tensors, as many bytes of gradients as of parameters.

    The last one of a capture may lack the last packets.
    """
    moved = transfers(load_frames(path)).groupby(["step", "direction"])["bytes"].sum().unstack()
    assert len(moved) >= 2
    assert moved.iloc[:-1].to_numpy() == pytest.approx(moved.iloc[0, 0], rel=1e-3)
    assert moved.iloc[-1].to_numpy() == pytest.approx(moved.iloc[0, 0], rel=6e-3)
