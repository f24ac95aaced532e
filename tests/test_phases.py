"""How throughput depends on the start, for jobs where it is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from asgd_model import phases
from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile

from .jobs import MB, job


def computing() -> Profile:
    """A job that computes for a second and moves next to nothing."""
    return job([1], computation=1.0)


def moving() -> Profile:
    """A job that downloads and uploads, and computes next to nothing."""
    return job([MB], computation=1e-3)


def test_computing_workers_do_not_notice_each_other() -> None:
    """Twice as fast as one worker at every offset; the start does not matter."""
    table = phases.throughput_by_offset(computing(), offsets=4)
    assert table["offset"].tolist() == [0.0, 0.25, 0.5, 0.75]
    assert table["speed_up"].to_numpy() == pytest.approx(2.0, rel=1e-3)
    assert phases.sensitivity(table) == pytest.approx(0.0, abs=1e-3)


def test_workers_that_only_transfer_lose_half_in_step() -> None:
    """In step they share each direction and are no faster than one; half a step apart, twice."""
    table = phases.throughput_by_offset(moving(), offsets=2)
    assert table["speed_up"].tolist() == pytest.approx([1.0, 2.0], rel=0.02)
    assert phases.sensitivity(table) == pytest.approx(0.5, abs=0.02)


def test_sensitivity_of_known_rates() -> None:
    """What the worst loses against the best."""
    assert phases.sensitivity(pd.DataFrame({"steps_per_s": [3.0, 4.0, 5.0]})) == pytest.approx(0.4)


def test_one_offset_tells_nothing() -> None:
    """The error names the number."""
    with pytest.raises(InputError, match="offsets: found 1; expected 2 or more"):
        phases.throughput_by_offset(computing(), offsets=1)


def test_random_starts_lie_between_the_extremes() -> None:
    """Of in step and taking turns; all runs are there, the same for the same seed."""
    runs = phases.random_starts(moving(), [1, 2], replications=20)
    assert runs.groupby("workers").size().tolist() == [20, 20]
    alone = runs[runs["workers"] == 1]["steps_per_s"].mean()
    together = runs[runs["workers"] == 2]["steps_per_s"]
    assert together.between(0.98 * alone, 2.02 * alone).all()
    assert together.std() > 0.0
    pd.testing.assert_frame_equal(runs, phases.random_starts(moving(), [1, 2], replications=20))


def test_what_breaks_a_lock_is_seen() -> None:
    """In step, two workers that only transfer lose; with a link twice as fast they lose as much."""
    profile = moving()
    variants = {
        "as it is": Cluster.like(profile, 2),
        "faster": Cluster.like(profile, 2, bandwidth=2.0 * profile.metadata.link_rate),
    }
    table = phases.lock_breakers(profile, variants, replications=5).set_index("variant")
    assert (table["together"] < table["random"]).all()
    assert table["lost"].to_numpy() == pytest.approx(
        np.asarray(1.0 - table["together"] / table["random"])
    )
    assert table.loc["faster", "together"] > 1.5 * table.loc["as it is", "together"]
