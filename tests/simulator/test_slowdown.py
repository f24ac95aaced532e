"""Workers that compute more slowly than the profiled one, always or now and then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.cluster import MAX_SPREAD, Cluster, Slowdown
from asgd_model.errors import InputError
from asgd_model.predict import predict
from asgd_model.simulator import simulate

from .jobs import MB, Job, chain, cluster, first_step, node, per_byte

STEPS = 2000


def slow(**values: float) -> Cluster:
    """One worker with a slowdown."""
    return cluster([replace(node(), slowdown=Slowdown(**values))])


def compute() -> Job:
    """A step of one second of computation."""
    job = Job()
    job.compute(1.0)
    return job


def step_times(**values: float) -> np.ndarray:
    """Seconds of `STEPS` steps that would take a second each without slowdown."""
    return simulate(compute().profile(), slow(**values), steps=STEPS, warm_up=0).step_times


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_constant(factor: float):
    """Computation takes so many times longer; transfers and the server do not."""
    ends = first_step(chain(MB, 0.5, MB, 0.25), slow(factor=factor))
    assert ends == pytest.approx(np.cumsum([[1.0, 0.5 * factor, 1.0, 0.25]], axis=1))


def test_communication_costs_stay():
    """The CPU time that it takes to receive and send is the calibrated one."""
    slower = replace(
        slow(factor=4.0),
        calibration=cluster(worker_receive=per_byte(2e-6), worker_send=per_byte(3e-6)).calibration,
    )
    assert first_step(chain(MB, 0.5, MB), slower) == pytest.approx(np.array([[2.0, 4.0, 7.0, 7.0]]))


def test_disturbed_steps():
    """The given fraction of steps is disturbed, each one as a whole.

    The count lies within 5 standard deviations of the binomial distribution's mean.
    """
    job = compute()
    job.compute(0.5, 0)
    disturbed = slow(factor=2.0, probability=0.3, disturbed=5.0)
    times = simulate(job.profile(), disturbed, steps=STEPS, warm_up=0).step_times
    assert set(times.round(9)) == {3.0, 15.0}
    assert abs((times > 3.1).sum() - 0.3 * STEPS) < 5 * np.sqrt(STEPS * 0.3 * 0.7)


def test_every_step_is_disturbed_with_certainty():
    """A probability of 1 is a constant factor."""
    assert step_times(probability=1.0, disturbed=2.5) == pytest.approx(np.full(STEPS, 2.5))


def test_lognormal():
    """Logarithms of step times are normal, with the spread given and the mean of times at 1.

    Mean and variance of a sample lie within 5 of their standard errors.
    """
    spread = 0.5
    logarithms = np.log(step_times(spread=spread))
    assert logarithms.mean() == pytest.approx(-(spread**2) / 2, abs=5 * spread / np.sqrt(STEPS))
    deviation = 5 * spread / np.sqrt(2 * STEPS)
    assert logarithms.std() == pytest.approx(spread, abs=deviation)
    assert np.corrcoef(logarithms[1:], logarithms[:-1])[0, 1] == pytest.approx(0, abs=0.12)


@given(
    st.builds(
        Slowdown,
        factor=st.floats(0.1, 10.0),
        spread=st.just(0.0) | st.floats(0.01, 0.5),
        probability=st.just(0.0) | st.floats(0.01, 1.0),
        disturbed=st.floats(0.1, 10.0),
    )
)
@settings(deadline=None, max_examples=30)
def test_mean(slowdown: Slowdown):
    """The mean of the factors drawn is the mean that the model states, within 6 errors."""
    factors = slowdown.draw(20_000, np.random.default_rng(0))
    error = factors.std() / np.sqrt(len(factors))
    assert factors.mean() == pytest.approx(slowdown.mean, abs=6 * error + 1e-9)


def test_other_workers_steps_stay():
    """That one worker is a straggler changes neither the steps that are drawn nor their starts."""
    profile = chain(MB, np.linspace(0.1, 2.0, 50), MB)
    equal = simulate(profile, cluster(3), seed=3)
    workers = (*cluster(2).workers, *slow(probability=0.2, disturbed=9.0).workers)
    straggler = simulate(profile, cluster(workers), seed=3)
    np.testing.assert_array_equal(equal.drawn, straggler.drawn)
    np.testing.assert_array_equal(equal.start[:, 0], straggler.start[:, 0])


def test_reaches_the_prediction(small):
    """`predict` takes a slowdown of all workers, and other methods its mean."""
    often = Slowdown(probability=0.5, disturbed=3.0)
    methods = ["simulation", "queueing", "lin2018"]
    options: dict[str, Any] = {"methods": methods, "replications": 20, "seed": 1}
    table = predict(small, [1], slowdown=often, **options).set_index("method")
    mean = predict(small, [1], slowdown=Slowdown(factor=often.mean), **options).set_index("method")
    assert table["steps_per_s"][methods[1:]].tolist() == pytest.approx(
        mean["steps_per_s"][methods[1:]]
    )
    plain = predict(small, [1], **options).set_index("method")
    assert (table["steps_per_s"] < plain["steps_per_s"]).all()
    # The mean of a step's time is that of the computation, which nothing else overlaps much.
    assert table["steps_per_s"]["simulation"] == pytest.approx(
        mean["steps_per_s"]["simulation"], rel=0.1
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("factor", value) for value in (0, -1, float("inf"), float("nan"), "2", True)),
        *(("disturbed", value) for value in (0, -1.0, float("nan"), None)),
        *(("spread", value) for value in (-0.1, 2 * MAX_SPREAD, float("nan"), "1")),
        *(("probability", value) for value in (-0.1, 1.1, float("nan"), None)),
    ],
)
def test_impossible_slowdowns(field: str, value: Any):
    """A factor is above 0, a probability at most 1; the error names the field."""
    with pytest.raises(InputError, match=f"Slowdown: {field}: found {value}; expected a"):
        Slowdown(**{field: value})


def test_only_workers_are_slowed_down():
    """The work of servers is that of several workers' steps: a step's factor does not say whose."""
    with pytest.raises(InputError, match=r"Cluster: servers: found Slowdown.*fewer cores"):
        cluster(1, slow(factor=2.0).workers)
    with pytest.raises(InputError, match=r"Node: slowdown: found 2.0; expected a Slowdown"):
        replace(node(), slowdown=2.0)  # type: ignore[arg-type]
