"""The equations of each model against values worked out independently."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model import Cluster, InputError, Node
from asgd_model.baselines import cynthia, lin2018, paleo, shi, ulanov, yan
from asgd_model.baselines.layers import Layers
from asgd_model.baselines.networks import architecture
from asgd_model.baselines.phases import Phases, PhaseTimes, exchange_time
from asgd_model.profile import Calibration, CommunicationCost
from asgd_model.queueing import exact_mva

MEGABYTE = Node(cores=1, uplink=8e6, downlink=8e6)
STEP = Phases(download=1e5, computation=0.4, upload=1e5, update=0.0)


def test_phase_times() -> None:
    """Bits against bytes, cores against threads, and the slower end of a link."""
    worker = Node(cores=4, uplink=4e6, downlink=16e6, threads=2)
    step = Phases(download=1e6, computation=3.0, upload=1e6, update=0.5)
    found = PhaseTimes.of(step, worker, (MEGABYTE, MEGABYTE))
    assert found == PhaseTimes(download=0.5, computation=1.5, upload=2.0, update=0.25)


def test_exchange_time() -> None:
    """All workers at once share the servers' links; one is limited by its own."""
    assert exchange_time(STEP, Cluster((MEGABYTE,) * 4, (MEGABYTE,))) == pytest.approx(0.8)
    assert exchange_time(STEP, Cluster((MEGABYTE,) * 4, (MEGABYTE,) * 2)) == pytest.approx(0.4)
    assert exchange_time(STEP, Cluster((MEGABYTE,), (MEGABYTE,) * 2)) == pytest.approx(0.2)


def test_lin2018_two_workers() -> None:
    """The second worker finds each link busy for the share of the time that the first uses it."""
    node = replace(MEGABYTE, uplink=8.0, downlink=8.0)
    step = Phases(download=0.781, computation=2.458, upload=0.781, update=0.0)
    solution = exact_mva(lin2018.network(step, Cluster((node, node), (node,))))
    busy = 0.781 / (2 * 0.781 + 2.458)
    assert solution.total_throughput == pytest.approx(2 / (2 * 0.781 * (1 + busy) + 2.458))


def test_lin2018_several_servers_and_types() -> None:
    """Demands of each server and type of worker."""
    slow = Node(cores=0.5, uplink=8e6, downlink=4e6)
    servers = (MEGABYTE, replace(MEGABYTE, uplink=16e6))
    step = replace(STEP, update=0.1)
    network = lin2018.network(step, Cluster((MEGABYTE, slow, MEGABYTE), servers))
    assert network.population.tolist() == [2, 1]
    found = dict(zip([s.name for s in network.stations], network.demands.tolist(), strict=True))
    assert found["server 0 sending"] == pytest.approx([0.05, 0.05])
    assert found["server 1 sending"] == pytest.approx([0.025, 0.025])
    assert found["server 1 receiving"] == pytest.approx([0.05, 0.05])
    assert found["server 0 CPU"] == pytest.approx([0.05, 0.05])
    # Downloads take 0.1 s over a worker's own link, 0.025 s more than the servers need, and
    # 0.2 s over the slow worker's.
    assert found["worker"] == pytest.approx([0.4 + 0.025, 0.8 + 0.125])


def test_cynthia_cpu_limit(chain) -> None:
    """Moving tensors costs the server CPU time, which can be the bottleneck."""
    cost = CommunicationCost(per_byte=2e-6, per_tensor=0.01)
    calibration = Calibration(server_send=cost, server_receive=cost)
    profile = chain([50_000, 50_000], [0.1, 0.1], [0.1, 0.1], 0.1, calibration=calibration)
    found = cynthia.predict(profile, [Cluster.like(profile, count) for count in (1, 9)])
    work = 0.1 + 2 * (100_000 * 2e-6 + 2 * 0.01)  # 0.54 s of the server's core per step
    assert found["steps_per_s"].tolist() == pytest.approx([1 / 0.6, 1 / work])


def test_cynthia_synchronous(chain) -> None:
    """The longer of computation and exchange."""
    profile = chain([50_000, 50_000], [0.1, 0.1], [0.1, 0.1])
    clusters = [Cluster.like(profile, count) for count in (1, 2, 8)]
    found = cynthia.predict(profile, clusters, synchronous=True)["steps_per_s"]
    assert found.tolist() == pytest.approx([1 / 0.4, 2 / 0.4, 8 / 1.6])


@pytest.mark.parametrize("nodes", [1, 2, 3, 8, 9])
def test_paleo_schemes(nodes: int) -> None:
    """Paleo's formulas for 2 GB over links of 1 GB/s."""
    rounds = math.ceil(math.log2(nodes))
    found = [
        paleo.communication_time(scheme, nodes, 2e9, 1e9)
        for scheme in ("one to all", "tree", "butterfly", "butterfly mixing")
    ]
    assert found == [4 * (nodes - 1), 4 * rounds, 2 * rounds, 2]


def test_paleo_layers() -> None:
    """AlexNet's first and a dense layer on hardware of known speed, worked out by hand."""
    device = paleo.Device(peak=1e12, percent_of_peak=0.5, memory_bandwidth=1e11)
    times = paleo.layer_times(architecture("alexnet"), 10, device).set_index("name")
    flops = 2 * 11 * 11 * 3 * 96 * 55 * 55 * 10
    moved = 4 * (10 * (227 * 227 * 3 + 55 * 55 * 96) + 11 * 11 * 3 * 96 + 96)
    conv = flops / 5e11 + moved / 1e11
    assert times.loc["conv1", "forward_s"] == pytest.approx(conv)
    assert times.loc["conv1", "backward_s"] == pytest.approx(conv)  # no gradient of the image
    flops = 2 * 4096 * 4096 * 10
    moved = 4 * (10 * 2 * 4096 + 4096 * 4096 + 4096)
    dense = flops / 5e11 + moved / 1e11
    assert times.loc["dense10", "forward_s"] == pytest.approx(dense)
    assert times.loc["dense10", "backward_s"] == pytest.approx(2 * dense)


def test_paleo_on_known_hardware(chain) -> None:
    """With a device nothing of the profile's times matters, and the update is memory traffic."""
    device = paleo.Device(peak=1e12, memory_bandwidth=1e11)
    size = 4 * 138_357_544
    made = [
        chain([size], [work], [work], dnn="vgg-16", batch_size=4, link_rate=1e10)
        for work in (1.0, 7.0)
    ]
    one, other = (
        paleo.predict(profile, [Cluster.like(profile, 3)], device=device) for profile in made
    )
    assert one["sees"].tolist() == ["architecture and hardware"]
    assert one["steps_per_s"].tolist() == other["steps_per_s"].tolist()
    times = paleo.layer_times(architecture("vgg-16"), 4, device)[["forward_s", "backward_s"]]
    update = 2 * size / 4 / 1e12 + 3 * size / 1e11
    step = times.to_numpy().sum() + update + 2 * 3 * 8 * size / 1e10
    assert one["steps_per_s"][0] == pytest.approx(3 / step)


def test_paleo_calibrated(chain) -> None:
    """Without a device a step of one worker computes as long as the profile says."""
    size = 4 * 138_357_544
    profile = chain([size], [1.0], [2.0], 0.5, dnn="VGG-16", link_rate=1e10, worker_cores=0.5)
    found = paleo.predict(profile, [Cluster.like(profile, 2)], scheme="tree")
    assert found["steps_per_s"][0] == pytest.approx(2 / (6.0 + 0.5 + 2 * 8 * size / 1e10))


def test_unknown_choices(chain) -> None:
    """Errors name the choices that there are."""
    profile = chain([1], [1.0], [1.0])
    clusters = [Cluster.like(profile)]
    with pytest.raises(InputError, match="small; expected one of alexnet"):
        paleo.predict(profile, clusters)
    with pytest.raises(InputError, match="star; expected one of one to all, tree"):
        paleo.communication_time("star", 2, 1.0, 1.0)
    with pytest.raises(InputError, match="cubic; expected one of linear, logarithmic"):
        ulanov.predict(profile, clusters, scheme="cubic")
    with pytest.raises(InputError, match="Device: peak: found 0"):
        paleo.Device(peak=0)


def test_ulanov_starts_from_the_measured_step(chain) -> None:
    """One worker makes the measured steps, less what tracing cost; more the speedup of it."""
    calibration = Calibration(tracing_overhead=0.25)
    profile = chain([100_000], [0.2], [0.2], 0.15, calibration=calibration)
    profiled = (0.1 + 0.4 + 0.1 + 0.15) / 1.25
    clusters = [Cluster.like(profile, count) for count in (1, 4)]
    found = ulanov.predict(profile, clusters)["steps_per_s"]
    assert found.tolist() == pytest.approx([1 / profiled, 2 / profiled])  # 4 x 0.6 / 1.2
    found = ulanov.predict(profile, clusters, scheme="logarithmic")["steps_per_s"]
    assert found.tolist() == pytest.approx([1 / profiled, 2 / profiled])  # 4 x 0.4 / 0.8


def test_shi(chain) -> None:
    """Exchanges of the layers hide behind the backward pass of those below."""
    profile = chain([20_000, 80_000], [0.05, 0.05], [0.2, 0.1], 0.02)
    clusters = [Cluster.like(profile, count) for count in (1, 2)]
    # One worker: top ready at 0.2, exchanged by 0.36; bottom ready at 0.4, exchanged by 0.44.
    # Two: top exchanged by 0.52, bottom by 0.6; the server applies two updates.
    found = shi.predict(profile, clusters)["steps_per_s"]
    assert found.tolist() == pytest.approx([1 / 0.46, 2 / 0.64])
    found = shi.predict(profile, clusters, overlap=False)["steps_per_s"]
    assert found.tolist() == pytest.approx([1 / 0.62, 2 / 0.84])


seconds = st.floats(0, 1)


@given(
    rows=st.lists(st.tuples(seconds, seconds, st.floats(1e3, 1e6)), min_size=1, max_size=6),
    update=st.floats(0, 0.5),
    read=seconds,
)
def test_yan_alone(rows, update, read) -> None:
    """One worker's critical path equals a walk through the step, event by event."""
    forward, backward, sizes = (np.array(column) for column in zip(*rows, strict=True))
    layers = Layers(read, sizes, forward, backward[::-1], sizes[::-1])
    arrived, computed = 0.0, read
    for size, work in zip(sizes, forward, strict=True):
        arrived += size / 1e6
        computed = max(computed, arrived) + work
    sent = applied = 0.0
    for size, work in zip(sizes[::-1], backward[::-1], strict=True):
        computed += work
        sent = max(sent, computed) + size / 1e6
        applied = max(applied, sent) + update * size / sizes.sum()
    found = yan.step_time(layers, update, MEGABYTE, (MEGABYTE,), workers=1)
    assert found == pytest.approx(applied)


@given(
    rows=st.lists(st.tuples(seconds, seconds, st.floats(1e3, 1e6)), min_size=1, max_size=6),
    update=st.floats(0, 0.5),
)
@settings(deadline=None)
def test_yan_saturates(rows, update) -> None:
    """Very many workers keep the servers' busiest resource busy, and no busier."""
    forward, backward, sizes = (np.array(column) for column in zip(*rows, strict=True))
    layers = Layers(0.0, sizes, forward, backward[::-1], sizes[::-1])
    time = yan.step_time(layers, update, MEGABYTE, (MEGABYTE,), workers=100_000)
    busiest = max(sizes.sum() / 1e6, update)
    assert 0.99 <= 100_000 / time * busiest <= 1 + 1e-9
