"""Orders of parameter transfers: TIC, TAC and given ones, and that the simulator keeps them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.cluster import STREAM_ORDERS, Cluster
from asgd_model.errors import InputError
from asgd_model.ordering import compare_orders, tac, tic
from asgd_model.predict import predict
from asgd_model.profile import DOWNLINK, UPLINK, Profile
from asgd_model.simulator import compare, replicate, simulate
from asgd_model.simulator.step_graph import MESSAGE_BYTES

from .jobs import MB, Job, cluster, first_step

seconds = st.integers(1, 20).map(lambda tenths: tenths / 10)


def layers(count: int) -> Profile:
    """A chain of layers, 1 s each, whose parameters, 1 MB each, are asked for last layer first."""
    job = Job()
    for _ in range(count):
        job.download(MB)
    last = job.compute(1.0, count - 1)
    for layer in range(1, count):
        last = job.compute(1.0, last, count - 1 - layer)
    return job.profile()


def branches(*times: tuple[float, float]) -> Profile:
    """Independent pairs of a download and a computation, of so many seconds each at 1 MB/s."""
    job = Job()
    for communication, _ in times:
        job.download(round(communication * MB))
    for download, (_, computation) in enumerate(times):
        job.compute(computation, download)
    return job.profile()


def test_tic_of_a_chain():
    """Layer i waits for i + 1 transfers; the first layer's is wanted as much as the second's.

    The impending loads are 4, 3, 2, 2: what precedes a transfer is what has less.
    """
    assert tic(layers(4))[:4].tolist() == [3, 2, 0, 0]


def test_tic_counts_transfers_in_the_graph():
    """A computation's wants are those of all it depends on; what is wanted alone comes last.

    x waits for transfers 1 and 2, y for x and transfer 0, z for transfer 3 only: the impending
    loads are 3, 2, 2 and infinite. Sizes and times make no difference.
    """
    job = Job()
    for size in (MB, 9 * MB, 2 * MB, 5 * MB):
        job.download(size)
    job.compute(7.0, 0, job.compute(1.0, 1, 2))
    job.compute(3.0, 3)
    assert tic(job.profile())[:4].tolist() == [2, 0, 0, 3]


def test_tac_of_a_chain():
    """Layer by layer, whatever the order of the requests."""
    assert tac(layers(5))[:5].tolist() == [4, 3, 2, 1, 0]


def test_tac_weighs_communication_against_computation():
    """A short transfer that releases much goes before a long one that releases little.

    M = 3 and 1 s, P = 1 and 5 s: hidden are min(1, 1) s in the order of the graph and min(5, 3) s
    in the other.
    """
    assert tac(branches((3.0, 1.0), (1.0, 5.0)))[:2].tolist() == [1, 0]


def test_tac_depends_on_the_platform():
    """The same job has another order on a slower link, and its own on a slower worker as well.

    M = 2 and 3 s, P = 2.5 and 3.5 s: min(2.5, 3) s hide, swapped min(3.5, 2) s. On a link of a
    tenth of the rate min(2.5, 30) s hide, swapped min(3.5, 20) s. With a tenth of a core, all
    times are ten times those at first.
    """
    profile = branches((2.0, 2.5), (3.0, 3.5))
    assert tac(profile)[:2].tolist() == [0, 1]
    assert tac(profile, bandwidth=0.8 * MB)[:2].tolist() == [1, 0]
    assert tac(profile, bandwidth=0.8 * MB, cores=0.1)[:2].tolist() == [0, 1]


def test_tac_computes_loads_anew():
    """Transfers 0 and 1 release 5 s of computation together, transfer 2 releases 1 s alone.

    At first only transfer 2 releases anything. Then 0 and 1 tie, and the order of the graph
    decides.
    """
    job = Job()
    for size in (MB, MB, 2 * MB):
        job.download(size)
    job.compute(5.0, 0, 1)
    job.compute(1.0, 2)
    assert tac(job.profile())[:3].tolist() == [1, 2, 0]


def test_tac_breaks_ties_by_impending_load():
    """Of two pairs of which neither releases anything at first, the smaller pair goes first."""
    job = Job()
    for size in (3 * MB, 2 * MB, MB, 2 * MB):
        job.download(size)
    job.compute(1.0, 0, 1)
    job.compute(1.0, 2, 3)
    assert sorted(tac(job.profile())[2:4]) == [0, 1]


@settings(max_examples=25, deadline=None)
@given(st.lists(seconds, min_size=6, max_size=6, unique=True))
def test_tac_is_optimal_for_independent_computations(times: list[float]):
    """Transfers and computations form a flow shop of two machines: Johnson (1954) is optimal.

    No order of the three transfers gives a shorter step.
    """
    profile = branches(*zip(times[:3], times[3:], strict=True))
    lengths = [
        first_step(profile, replace(cluster(), stream_order=order)).max()
        for order in permutations(profile.names[:3])
    ]
    assert first_step(profile, cluster(order="tac")).max() == pytest.approx(min(lengths))


def test_signals_and_uploads_are_not_ordered():
    """Ranks number the parameters; all other operations have rank 0 and signals go first."""
    job = Job()
    job.download(MESSAGE_BYTES)
    job.download(MB)
    job.download(MB)
    job.upload(MB, job.compute(1.0, job.compute(1.0, 1), 2))
    for ranks in (tic(job.profile()), tac(job.profile())):
        assert not ranks[[0, 3, 4, 5]].any()
    assert tac(job.profile())[1:3].tolist() == [0, 1]


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(5)), st.sampled_from([None, MB // 3, 2 * MB]))
def test_a_given_order_is_kept(order: list[int], window: int | None):
    """Downloads end in the given order; a window does not help those that come later."""
    profile = branches(*((size, 0.1) for size in (1.0, 0.5, 2.0, 1.5, 0.7)))
    given_order = tuple(profile.names[op] for op in order)
    ends = first_step(profile, replace(cluster(window=window), stream_order=given_order))[0, :5]
    assert np.argsort(ends).tolist() == order


def test_downloads_that_are_not_named_come_last():
    """In the order in which they are ready."""
    profile = branches((1.0, 0.1), (1.0, 0.1), (1.0, 0.1))
    ends = first_step(profile, replace(cluster(), stream_order=("op 2",)))[0, :3]
    assert ends == pytest.approx([2.0, 3.0, 1.0])


@pytest.mark.parametrize("order", ["tic", "tac"])
def test_a_computed_order_is_kept(alexnet: Profile, order: str):
    """No parameter of AlexNet overtakes one of a lower rank: all are asked for at once."""
    ranks = {"tic": tic, "tac": tac}[order](alexnet)
    ends = first_step(alexnet, Cluster.like(alexnet, stream_order=order))[0]
    parameters = np.flatnonzero((alexnet.resources == DOWNLINK) & (alexnet.sizes > 0))
    arrived = parameters[np.argsort(ends[parameters])]
    assert (np.diff(ranks[arrived]) >= 0).all()
    assert len(set(ranks[arrived])) >= 8


def test_a_computed_order_beats_the_reverse():
    """Four layers: 5 s layer by layer, 6 s where the first two change places, 8 s in reverse."""
    lengths = [
        first_step(layers(4), cluster(order=order)).max() for order in ("tac", "tic", "fifo")
    ]
    assert lengths == pytest.approx([5.0, 6.0, 8.0])


@settings(max_examples=10, deadline=None)
@given(st.integers(3, 8))
def test_a_computed_order_beats_the_reverse_of_any_chain(count: int):
    """The longer the chain, the more of it overlaps."""
    profile = layers(count)
    tac_, tic_, fifo = (
        first_step(profile, cluster(order=order)).max() for order in ("tac", "tic", "fifo")
    )
    assert tac_ < tic_ < fifo


@pytest.mark.parametrize("order", STREAM_ORDERS)
def test_an_order_never_changes_what_is_moved(alexnet: Profile, order: str):
    """The worker receives and sends the same bytes in any order."""
    servers = Cluster.like(alexnet, stream_order=order)
    result = simulate(alexnet, servers, steps=2, warm_up=0, starts=[0.0])
    for direction, total in zip((UPLINK, DOWNLINK), result.used[0, 1:], strict=True):
        tensors = alexnet.resources == direction
        expected = 2 * (alexnet.bytes_moved(direction) + MESSAGE_BYTES * tensors.sum())
        assert total == pytest.approx(expected)


def test_orders_reach_the_prediction():
    """`predict` takes every order; layer by layer is the fastest here."""
    profile = layers(4)
    speed = {
        order: predict(profile, [1], methods=["simulation"], replications=2, stream_order=order)
        for order in ("tic", "tac", "fifo", ("op 3", "op 2", "op 1", "op 0"))
    }
    named, fifo = speed["op 3", "op 2", "op 1", "op 0"], speed["fifo"]
    assert named["steps_per_s"].equals(speed["tac"]["steps_per_s"])
    assert (speed["tac"]["steps_per_s"] > speed["tic"]["steps_per_s"]).all()
    assert (speed["tic"]["steps_per_s"] > fifo["steps_per_s"]).all()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("op 0", "op 0"), "found op 0; expected each download once"),
        (("op 0", "op 2"), "found op 2; expected a download of the profile"),
    ],
)
def test_names_must_be_downloads(order: tuple[str, ...], message: str):
    """The error shows the name that cannot be ordered."""
    profile = branches((1.0, 1.0), (1.0, 1.0))
    with pytest.raises(InputError, match=message):
        simulate(profile, replace(cluster(), stream_order=order))


@pytest.mark.parametrize("values", [{"bandwidth": 0.0}, {"cores": -1.0}])
def test_tac_needs_a_platform(values: dict[str, float]):
    """Times cannot be had from a rate or a speed of nothing."""
    with pytest.raises(InputError, match=f"{next(iter(values))}: .* a number above 0"):
        tac(layers(2), **values)


def test_comparison_of_equal_runs():
    """Nothing but the variant differs: 8 s and 5 s steps are a gain of 60 % in every run.

    The reference gains nothing. With one worker alone nothing is random.
    """
    profile = layers(4)
    variants = {order: [cluster(order=order)] for order in ("fifo", "tac", "tic")}
    table = compare(profile, variants, replications=3)
    assert table["variant"].tolist() == ["fifo", "tac", "tic"]
    assert table["gain"].tolist() == pytest.approx([0.0, 8 / 5 - 1, 8 / 6 - 1])
    for column in ("gain_low", "gain_high"):
        assert table[column].tolist() == pytest.approx(table["gain"].tolist())


def test_comparison_is_paired():
    """The interval is that of the ratios of runs with the same starts: Student's t by hand."""
    profile = layers(3)
    variants = {order: [cluster(3, order=order)] for order in ("fifo", "tac")}
    table = compare(profile, variants, replications=4, steps=5)
    fifo, tac_ = (
        np.array([run.steps_per_s for run in replicate(profile, where[0], 4, steps=5)])
        for where in variants.values()
    )
    ratio = tac_ / fifo - 1
    margin = 3.182446 * ratio.std(ddof=1) / 2
    assert margin > 0
    assert table.loc[1, ["gain_low", "gain", "gain_high"]].tolist() == pytest.approx(
        [ratio.mean() - margin, ratio.mean(), ratio.mean() + margin]
    )


def test_variants_must_match():
    """Only clusters of the same size can be compared, and intervals need two runs."""
    profile = layers(3)
    with pytest.raises(InputError, match="the same numbers of workers"):
        compare(profile, {"one": [cluster(1)], "two": [cluster(2)]})
    with pytest.raises(InputError, match="variants: found none"):
        compare(profile, {})
    with pytest.raises(InputError, match="replications: found 1; expected at least 2"):
        compare(profile, {"one": [cluster(1)]}, replications=1)


def test_orders_side_by_side():
    """Recorded positions are means over the profiled steps; rows follow the order of TAC."""
    profile = layers(3)
    ends = profile.end.repeat(2, axis=0)
    ends[0, :3], ends[1, :3] = [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]
    start = np.zeros_like(ends)
    work = profile.work.repeat(2, axis=0)
    table = compare_orders(replace(profile, start=start, end=ends, work=work))
    assert table["name"].tolist() == ["op 2", "op 1", "op 0"]
    assert table["recorded"].tolist() == [1.0, 1.0, 1.0]
    assert table["tic"].tolist() == [0, 0, 2]
    assert table["tac"].tolist() == [0, 1, 2]
    assert table["bytes"].tolist() == [MB - MESSAGE_BYTES] * 3
