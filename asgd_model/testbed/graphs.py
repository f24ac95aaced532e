"""The TensorFlow graphs of the testbed's jobs.

A training step is built from the network's description in `asgd_model.baselines.networks`: the
predictors that start from an architecture and the testbed speak of the same network.
Convolutions and dense layers but the last are rectified, the branches of an addition after it.
Batch normalisation uses the statistics of the batch and moves its averages on their server.
Local response normalisation and dropout, which have no parameters, are left out.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow.compat.v1 as tf

from asgd_model.baselines.architectures import (
    Add,
    Architecture,
    Concat,
    Conv,
    Dense,
    Padding,
    Pool,
    Step,
    Steps,
)
from asgd_model.testbed.protocol import Policy, Transfer

CLASSES = 1000
"""Of the images that the networks tell apart."""

_LEARNING_RATE = 1e-3
_AVERAGE_DECAY = 0.99
_IN_FLIGHT = 2
"""Variables that are requested at a time when their order is enforced: the next one's request
travels while the last one arrives."""


def training(network: Architecture, batch_size: int, seed: int, policy: Policy = "default") -> Any:
    """Add a step of stochastic gradient descent to the default graph.

    Images and labels are drawn by the worker. Call it under a device function that places
    variables.

    Parameters
    ----------
    network : Architecture
        What is trained.
    batch_size : int
        Examples per step.
    seed : int
        Of images, labels and the variables' initial values.
    policy : str
        Order in which variables are received, see `asgd_model.testbed.protocol.Policy`.

    Returns
    -------
    Operation
        What a worker runs in each step.
    """
    tf.set_random_seed(seed)
    builder = _Builder(network, ordered=policy == "layers")
    images = tf.random_uniform((batch_size, *network.image), -1.0, 1.0)
    labels = tf.random_uniform((batch_size,), maxval=CLASSES, dtype=tf.int32)
    logits = builder.steps(network.steps, images)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    descent = tf.train.GradientDescentOptimizer(_LEARNING_RATE).minimize(loss)
    return tf.group(descent, *builder.updates)


def transfer(step: Transfer, worker: str) -> Any:
    """Add a step that moves tensors between the first server and a worker, and nothing else.

    Parameters
    ----------
    step : Transfer
        How many tensors, of what size, in which direction.
    worker : str
        Device of the worker.

    Returns
    -------
    Operation
        What the worker runs.
    """
    source, target = "/job:ps/task:0", worker
    if step.direction == "up":
        source, target = target, source
    moved = []
    for _ in range(step.tensors):
        with tf.device(source):
            values = tf.zeros((step.bytes_each // 4,))
            tensor = tf.Variable(values, use_resource=True).read_value()
        with tf.device(target):
            moved.append(tf.identity(tensor))
    return tf.group(moved)


class _Builder:
    """Adds layers to the graph; `updates` are the moves of the normalisations' averages."""

    def __init__(self, network: Architecture, ordered: bool) -> None:
        self.network = network
        self.updates: list[Any] = []
        self._ordered = ordered
        self._received: list[Any] = []
        self._layers = 0

    def steps(self, steps: Steps, values: Any, rectify_last: bool = True) -> Any:
        """Apply steps one after the other; the last one as it is unless `rectify_last`."""
        for index, step in enumerate(steps, start=1):
            values = self._step(step, values, rectify_last or index < len(steps))
        return values

    def _step(self, step: Step, values: Any, rectify: bool) -> Any:
        match step:
            case Conv():
                values = self._conv(step, values)
                return tf.nn.relu(values) if rectify else values
            case Pool():
                return _pool(step, values)
            case Dense():
                values = self._dense(step, values)
                return values if step is self.network.steps[-1] else tf.nn.relu(values)
            case Concat():
                return tf.concat([self.steps(branch, values) for branch in step.branches], axis=3)
            case Add():
                branches = [self.steps(branch, values, False) for branch in step.branches]
                return tf.nn.relu(tf.add_n(branches))

    def _conv(self, step: Conv, values: Any) -> Any:
        kernel = (step.kernel,) * 2 if isinstance(step.kernel, int) else step.kernel
        inputs = values.shape[3].value // step.groups
        with tf.variable_scope(self._name("conv")):
            weights = self._weights((*kernel, inputs, step.channels), math.prod(kernel) * inputs)
            values = _convolve(values, weights, step)
            if self.network.conv_bias:
                values = tf.nn.bias_add(values, self._vector("biases", step.channels, 0.0))
            return self._normalise(values, step.channels)

    def _normalise(self, values: Any, channels: int) -> Any:
        """Batch normalisation, if the network has one."""
        if not self.network.normalisation:
            return values
        offset = self._vector("offset", channels, 0.0)
        if self.network.normalisation == 2:
            scale = self._vector("scale", channels, 1.0)
        else:
            scale = tf.ones((channels,))
        values, mean, variance = tf.nn.fused_batch_norm(values, scale, offset, is_training=True)
        for name, initial, observed in (("mean", 0.0, mean), ("variance", 1.0, variance)):
            average = _variable(name, (channels,), tf.constant_initializer(initial), False)
            with tf.colocate_with(average.handle):
                moved = (average - observed) * (1.0 - _AVERAGE_DECAY)
                self.updates.append(average.assign_sub(moved, read_value=False))
        return values

    def _dense(self, step: Dense, values: Any) -> Any:
        with tf.variable_scope(self._name("dense")):
            inputs = math.prod(values.shape[1:].as_list())
            weights = self._weights((inputs, step.units), inputs)
            values = tf.matmul(tf.reshape(values, (-1, inputs)), weights)
            return tf.nn.bias_add(values, self._vector("biases", step.units, 0.0))

    def _weights(self, shape: tuple[int, ...], inputs: int) -> Any:
        """Weights whose variance keeps that of rectified values (He et al., ICCV 2015)."""
        initializer = tf.random_normal_initializer(stddev=math.sqrt(2.0 / inputs))
        return self._receive(_variable("weights", shape, initializer))

    def _vector(self, name: str, length: int, value: float) -> Any:
        """One number for each channel or unit, all equal at first."""
        return self._receive(_variable(name, (length,), tf.constant_initializer(value)))

    def _receive(self, variable: Any) -> Any:
        """The value of a variable on the worker; if ordered, not before earlier ones."""
        if not self._ordered:
            return variable
        with tf.control_dependencies(self._received[: 1 - _IN_FLIGHT][-1:]):
            value = variable.read_value()
        self._received.append(value)
        return value

    def _name(self, kind: str) -> str:
        self._layers += 1
        return f"{kind}{self._layers}"


def _variable(name: str, shape: tuple[int, ...], initializer: Any, trainable: bool = True) -> Any:
    return tf.get_variable(
        name, shape, initializer=initializer, trainable=trainable, use_resource=True
    )


def _convolve(values: Any, weights: Any, step: Conv) -> Any:
    if isinstance(step.padding, int):
        zeros = (step.padding, step.padding)
        values, padding = tf.pad(values, ((0, 0), zeros, zeros, (0, 0))), "VALID"
    else:
        padding = _padding(step.padding)
    if step.groups == 1:
        return tf.nn.conv2d(values, weights, step.stride, padding)
    groups = zip(
        tf.split(values, step.groups, axis=3), tf.split(weights, step.groups, axis=3), strict=True
    )
    return tf.concat(
        [tf.nn.conv2d(part, own, step.stride, padding) for part, own in groups], axis=3
    )


def _pool(step: Pool, values: Any) -> Any:
    kernel = step.kernel or values.shape[1:3].as_list()
    padding = _padding(step.padding if step.kernel else "valid")
    pool = tf.nn.max_pool2d if step.kind == "max" else tf.nn.avg_pool2d
    return pool(values, kernel, step.stride, padding)


def _padding(padding: Padding) -> str:
    return str(padding).upper()
