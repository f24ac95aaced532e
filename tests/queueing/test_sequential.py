"""A job made for the queueing model: its simulation is what exact MVA says."""

from __future__ import annotations

import numpy as np
import pytest

from asgd_model import InputError, predict
from asgd_model.cluster import Cluster
from asgd_model.profile import DOWNLINK, UPLINK, Profile
from asgd_model.queueing.asgd import network
from asgd_model.queueing.sequential import sequential


def test_same_demands(small: Profile) -> None:
    """Bytes and work are those of the job, communication included."""
    job = sequential(small)
    expected, found = (network(each, Cluster.like(each, 2)).demands for each in (small, job))
    assert found == pytest.approx(expected, rel=1e-6)
    assert job.bytes_moved(DOWNLINK) == small.bytes_moved(DOWNLINK)
    assert job.bytes_moved(UPLINK) == small.bytes_moved(UPLINK)


def test_exponential_work(small: Profile) -> None:
    """Work varies like the exponential distribution, and that of two phases independently."""
    work = sequential(small, steps=2000).work
    assert work[:, 1].std() == pytest.approx(work[:, 1].mean(), rel=0.05)
    assert abs(np.corrcoef(work[:, 1], work[:, 3])[0, 1]) < 0.05


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_simulation_agrees_with_exact_mva(small: Profile, workers: int) -> None:
    """Without overlap the queueing model is right, although transfers are constant."""
    job = sequential(small)
    table = predict(
        job, [workers], methods=["simulation", "queueing"], steps=200, warm_up=20, replications=8
    )
    simulated, exact = table["steps_per_s"]
    assert simulated == pytest.approx(exact, rel=0.03)


def test_bad_input(small: Profile) -> None:
    """The number of steps must be positive."""
    with pytest.raises(InputError, match="steps"):
        sequential(small, steps=0)
