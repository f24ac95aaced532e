"""Graphs that are trained: parameters, their place, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from asgd_model.baselines.networks import architecture
from asgd_model.testbed.protocol import Transfer

tf = pytest.importorskip("tensorflow.compat.v1", reason="TensorFlow is missing")

from asgd_model.testbed import graphs  # noqa: E402 - needs TensorFlow

PUBLISHED = {
    "alexnet": 60_965_224,
    "googlenet": 6_998_552,
    "inception-v3": 23_817_352,
    "resnet-50": 25_583_592,
    "vgg-11": 132_863_336,
}
"""Trained parameters: AlexNet's two towers as in its paper, GoogLeNet without auxiliary
classifiers, Inception-v3 and ResNet-50 as in Keras, VGG-11 configuration A."""


def build(dnn: str, batch_size: int = 2, servers: int = 1, policy: Any = "default") -> Any:
    """The graph of a training job as a worker builds it."""
    tf.disable_v2_behavior()
    cluster = {"ps": [f"ps{i}:1" for i in range(servers)], "worker": ["worker0:1"]}
    graph = tf.Graph()
    setter = tf.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0")
    with graph.as_default(), tf.device(setter):
        graphs.training(architecture(dnn), batch_size, seed=0, policy=policy)
    return graph


@pytest.mark.parametrize(("dnn", "parameters"), PUBLISHED.items())
def test_networks_have_their_published_size(dnn: str, parameters: int) -> None:
    """The graph trains as many parameters as published, layer by layer as the table of layers."""
    graph = build(dnn)
    trained = graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
    assert sum(variable.shape.num_elements() for variable in trained) == parameters
    weights = [v.shape.num_elements() for v in trained if v.op.name.endswith("weights")]
    assert weights == [layer.weights for layer in architecture(dnn).layers if layer.weights]
    updates = [op for op in graph.get_operations() if op.type == "ResourceApplyGradientDescent"]
    assert len(updates) == len(trained)


def test_variables_and_their_updates_are_on_servers() -> None:
    """All that belongs to a variable is on its server, in turn; all else is on the worker."""
    graph = build("resnet-50", servers=2)
    kinds = {"VarHandleOp", "ResourceApplyGradientDescent", "AssignSubVariableOp"}
    for op in graph.get_operations():
        if op.type in kinds:
            assert "/job:ps" in op.device, op.name
        elif op.type.startswith(("Conv2D", "FusedBatchNorm", "MatMul", "MaxPool")):
            assert op.device == "/job:worker/task:0", op.name
    handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
    tasks = [op.device[-1] for op in handles]
    assert tasks == ["0", "1"] * (len(handles) // 2)


def test_the_policy_layers_requests_variables_in_order() -> None:
    """No variable is read before the last but one before it has arrived at the worker."""
    graph = build("googlenet", policy="layers")
    reads = [op for op in graph.get_operations() if op.type == "ReadVariableOp"]
    ordered = [op for op in reads if op.control_inputs]
    trained = graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
    assert len(ordered) == len(trained) - 2
    for op in ordered:
        (earlier,) = op.control_inputs
        assert earlier.device == "/job:worker/task:0"


def test_a_step_computes_finite_gradients() -> None:
    """Losses of the initial weights are near that of guessing, so that steps do real work."""
    graph = tf.Graph()
    tf.disable_v2_behavior()
    with graph.as_default():
        step = graphs.training(architecture("alexnet-small"), 2, seed=1)
        before = graph.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            biases = next(v for v in before if v.op.name.endswith("biases"))
            at_first = session.run(biases)
            session.run(step)
            moved = session.run(biases)
    assert (at_first == 0.0).all()
    assert (moved != 0.0).any()
    assert abs(moved).max() < 1.0


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_transfer_moves_its_tensors(direction: Any) -> None:
    """As many tensors of the given size cross between server and worker, in one direction."""
    graph = tf.Graph()
    with graph.as_default():
        step = Transfer(direction=direction, tensors=3, bytes_each=4000)
        operation = graphs.transfer(step, "/job:worker/task:0")
    received = operation.control_inputs
    assert len(received) == 3
    source, target = "/job:ps/task:0", "/job:worker/task:0"
    if direction == "up":
        source, target = target, source
    for identity in received:
        assert identity.device == target
        assert identity.inputs[0].op.device == source
        assert identity.inputs[0].shape.num_elements() * 4 == 4000
