"""Cutting a step graph into layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgd_model import InputError
from asgd_model.baselines.layers import Layers, pipeline
from asgd_model.baselines.networks import architecture
from asgd_model.profile import DOWNLINK, UPLINK, WORKER, Metadata, Profile
from asgd_model.tensorflow_trace import read_run_metadata

RAW = Path(__file__).parents[2] / "data" / "raw" / "cpu-0.15-300mbit"


def test_chain(chain) -> None:
    """A network without branches comes back layer by layer."""
    layers = Layers.of(chain([10, 20, 30], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]))
    assert layers.input_work == 0
    np.testing.assert_array_equal(layers.parameter_bytes, [10, 20, 30])
    np.testing.assert_array_equal(layers.forward_work, [1, 2, 3])
    np.testing.assert_array_equal(layers.gradient_bytes, [30, 20, 10])
    np.testing.assert_array_equal(layers.backward_work, [6, 5, 4])


def test_weights_are_used_in_both_passes(graph) -> None:
    """That the backward pass needs a tensor as well does not change the order of first use."""
    build = graph()
    late, early = (build.add(name, DOWNLINK, size=1) for name in ("late", "early"))
    one = build.add("one", WORKER, early, work=1.0)
    two = build.add("two", WORKER, late, one, work=2.0)
    loss = build.add("loss", WORKER, two, work=4.0)
    top = build.add("top", WORKER, loss, work=8.0)
    inner = build.add("inner", WORKER, loss, late, work=16.0)
    bottom = build.add("bottom", WORKER, inner, work=32.0)
    build.add("gradient of late", UPLINK, top, size=7)
    build.add("gradient of early", UPLINK, bottom, size=9)
    layers = Layers.of(build.profile())
    np.testing.assert_array_equal(layers.forward_work, [1, 2 + 4])
    np.testing.assert_array_equal(layers.gradient_bytes, [7, 9])
    np.testing.assert_array_equal(layers.backward_work, [8, 16 + 32])


def test_what_is_no_gradient(graph) -> None:
    """A learning rate and a statistic leave early and delay nothing; input needs no parameter."""
    build = graph()
    first, second = (build.add(name, DOWNLINK, size=5) for name in ("first", "second"))
    build.add("rate", UPLINK, build.add("constant", WORKER), size=4)
    read = build.add("read", WORKER, work=1.0)
    one = build.add("one", WORKER, read, first, work=2.0)
    build.add("statistic", UPLINK, build.add("mean", WORKER, one, work=4.0), size=3)
    two = build.add("two", WORKER, one, second, work=8.0)
    loss = build.add("loss", WORKER, two)
    top = build.add("top", WORKER, loss, work=16.0)
    bottom = build.add("bottom", WORKER, loss, work=32.0)
    build.add("of second", UPLINK, top, size=5)
    build.add("of first", UPLINK, bottom, size=5)
    layers = Layers.of(build.profile())
    assert layers.input_work == 1
    np.testing.assert_array_equal(layers.forward_work, [2 + 4, 8])
    np.testing.assert_array_equal(layers.gradient_bytes, [4, 3, 5, 5])
    np.testing.assert_array_equal(layers.backward_work, [0, 0, 16, 32])


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, list[int], int, float]]:
    """Random acyclic graphs with at least one transfer each way."""
    resources = draw(st.lists(st.sampled_from([DOWNLINK, WORKER, UPLINK]), max_size=25))
    rows = []
    for index, resource in enumerate([DOWNLINK, *resources, UPLINK]):
        after = draw(st.lists(st.integers(0, index - 1), unique=True)) if index else []
        size = 0 if resource == WORKER else draw(st.integers(0, 100))
        work = draw(st.integers(0, 50)) if resource == WORKER else 0
        rows.append((resource, after, max(size, index == 0 or index > len(resources)), work))
    return rows


@given(graphs())
def test_nothing_is_lost(graph, rows) -> None:
    """All bytes and all computation of any step graph are in some layer."""
    build = graph()
    for index, (resource, after, size, work) in enumerate(rows):
        build.add(f"op{index}", resource, *after, size=int(size), work=float(work))
    profile: Profile = build.profile()
    layers = Layers.of(profile)
    assert layers.parameter_bytes.sum() == profile.bytes_moved(DOWNLINK)
    assert layers.gradient_bytes.sum() == profile.bytes_moved(UPLINK)
    work = layers.input_work + layers.forward_work.sum() + layers.backward_work.sum()
    assert work == pytest.approx(profile.mean_work(WORKER))
    assert (layers.forward_work >= 0).all()
    assert (layers.backward_work >= 0).all()


def recorded(dnn: str, batch_size: int, parameters: int) -> Profile:
    """One traced step of a real job."""
    known = {"dnn": dnn, "batch_size": batch_size, "parameters": parameters, "link_rate": 2.87e8}
    return read_run_metadata([RAW / dnn / "run_metadata_03.pb.gz"], Metadata(**known))


def test_recorded_alexnet() -> None:
    """A real step graph yields the network's tensors in the order of its layers, and back."""
    layers = Layers.of(recorded("alexnet", 8, 50_303_912))
    network = [layer for layer in architecture("alexnet", 50_303_912).layers if layer.weights]
    tensors = [4 * size for layer in network for size in (layer.weights, layer.biases)]
    np.testing.assert_array_equal(layers.parameter_bytes, tensors)
    learning_rate, *gradients = layers.gradient_bytes
    assert learning_rate == 4
    backwards = [4 * size for layer in network[::-1] for size in (layer.biases, layer.weights)]
    assert gradients == backwards
    assert 1 < layers.backward_work.sum() / layers.forward_work.sum() < 3


def test_recorded_googlenet() -> None:
    """A real step graph with branches yields all tensors, the stem first and the end last."""
    layers = Layers.of(recorded("googlenet", 4, 6_998_552))
    network = [layer for layer in architecture("googlenet").layers if layer.weights]
    tensors = [4 * size for layer in network for size in (layer.weights, layer.biases)]
    assert sorted(layers.parameter_bytes) == sorted(tensors)
    assert layers.parameter_bytes[:6].tolist() == tensors[:6]
    assert layers.parameter_bytes[-2:].tolist() == tensors[-2:]
    assert 1 < layers.backward_work.sum() / layers.forward_work.sum() < 3


def test_no_transfers(graph) -> None:
    """Without transfers there are no layers."""
    build = graph()
    build.add("parameter", DOWNLINK, size=1)
    with pytest.raises(InputError, match="a transfer over the uplink"):
        Layers.of(build.profile())


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1))
def test_pipeline(tasks) -> None:
    """The closed form equals the recursion."""
    ready, service = np.array(tasks, dtype=np.float64).T
    end = 0.0
    for ends, (when, seconds) in zip(pipeline(ready, service), tasks, strict=True):
        end = max(end, when) + seconds
        assert ends == pytest.approx(end)
