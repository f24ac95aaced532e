"""Tables of a network's layers: shapes, parameters, FLOPs and bytes.

A network is described by nested steps (`Conv`, `Pool`, `Dense`, `Concat`, `Add`); all else
follows from them.

Conventions: numbers are for one example; a multiply-add counts as two FLOPs; a pooling or an
addition counts one FLOP per value that it reads; activation, normalisation and dropout are not
counted, as in published figures. Values are of 4 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

VALUE_BYTES = 4
"""Bytes of a single-precision number."""

Shape = tuple[int, int, int]
"""Height, width and channels."""
Padding = Literal["same", "valid"] | int
"""As in TensorFlow, or the number of zeros on each side."""


@dataclass(frozen=True)
class Conv:
    """A convolution, of a square kernel unless height and width are given."""

    channels: int
    kernel: int | tuple[int, int]
    stride: int = 1
    padding: Padding = "same"
    groups: int = 1


@dataclass(frozen=True)
class Pool:
    """A pooling; over the whole image without a kernel."""

    kind: Literal["max", "average"]
    kernel: int | None = None
    stride: int = 1
    padding: Padding = "same"


@dataclass(frozen=True)
class Dense:
    """A fully connected layer with biases."""

    units: int


@dataclass(frozen=True)
class Concat:
    """Branches from the same input whose outputs' channels are put together."""

    branches: tuple[Steps, ...]
    name: str = "split"


@dataclass(frozen=True)
class Add:
    """Branches from the same input whose outputs are added; an empty one is a shortcut."""

    branches: tuple[Steps, ...]
    name: str


Step = Conv | Pool | Dense | Concat | Add
Steps = Sequence[Step]


@dataclass(frozen=True)
class Layer:
    """One layer of a network.

    Attributes
    ----------
    name : str
        Path of the layer in the network.
    kind : str
        ``conv``, ``dense``, ``max pool``, ``average pool``, ``concat`` or ``add``.
    input, output : tuple of int
        Height, width and channels.
    kernel : tuple of int
        Height and width; (1, 1) where there is none.
    stride, groups : int
        Of a convolution or pooling; 1 where there is none.
    padding : str or int
        See `Padding`.
    weights : int
        Weights of the layer's kernel or matrix.
    biases : int
        Trained numbers beside the weights: biases, and offsets and scales of a normalisation.
    statistics : int
        Moving means and variances of a normalisation, which are not trained.
    flops : int
        Of the forward pass of one example.
    """

    name: str
    kind: str
    input: Shape
    output: Shape
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: Padding = "valid"
    groups: int = 1
    weights: int = 0
    biases: int = 0
    statistics: int = 0
    flops: int = 0

    @property
    def parameters(self) -> int:
        """Trained numbers."""
        return self.weights + self.biases

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters."""
        return VALUE_BYTES * self.parameters

    @property
    def input_bytes(self) -> int:
        """Bytes that the forward pass of one example reads beside the parameters."""
        return VALUE_BYTES * math.prod(self.input)

    @property
    def output_bytes(self) -> int:
        """Bytes of the activations of one example."""
        return VALUE_BYTES * math.prod(self.output)


@dataclass(frozen=True)
class Architecture:
    """A network, described by its steps.

    Attributes
    ----------
    name, source : str
        Its name and where it is published.
    image : tuple of int
        Height, width and channels of the input.
    steps : sequence of Step
        What happens to it.
    conv_bias : bool
        Whether convolutions have biases.
    normalisation : int
        Trained numbers per channel of the batch normalisation after each convolution: 0 without
        one, 1 for an offset, 2 for an offset and a scale.
    family : str
        The name that it shares with other variants; by default its own.

    Examples
    --------
    A convolution of 3x3 weights for each of 3 x 8 pairs of channels and 8 biases; 10 dense units
    on the 4 x 4 x 8 values that are left:

    >>> steps = (Conv(8, 3), Pool("max", 2, 2), Dense(10))
    >>> network = Architecture("small", "an example", (8, 8, 3), steps)
    >>> network.table()[["name", "output", "parameters", "flops"]]
         name      output  parameters  flops
    0   conv1   (8, 8, 8)         224  27648
    1   pool2   (4, 4, 8)           0    512
    2  dense3  (1, 1, 10)        1290   2560
    """

    name: str
    source: str
    image: Shape
    steps: Steps
    conv_bias: bool = True
    normalisation: int = 0
    family: str = ""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in the order of the forward pass."""
        return tuple(self._layers(self.steps, self.image, ""))

    @property
    def parameters(self) -> int:
        """Trained numbers of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def statistics(self) -> int:
        """Moving means and variances of all layers."""
        return sum(layer.statistics for layer in self.layers)

    @property
    def flops(self) -> int:
        """FLOPs of the forward pass of one example."""
        return sum(layer.flops for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of convolutions and dense layers of one example, as papers state them."""
        counted = (layer for layer in self.layers if layer.kind in ("conv", "dense"))
        return sum(layer.flops for layer in counted) // 2

    def table(self) -> pd.DataFrame:
        """All layers, one row each.

        Returns
        -------
        DataFrame
            Columns `name`, `kind`, `input`, `output`, `kernel`, `stride`, `padding`, `groups`,
            `parameters`, `statistics`, `flops`, `input_bytes`, `output_bytes`, `weight_bytes`;
            see `Layer`.
        """
        import pandas as pd

        columns = (
            *("name", "kind", "input", "output", "kernel", "stride", "padding", "groups"),
            *("parameters", "statistics", "flops", "input_bytes", "output_bytes", "weight_bytes"),
        )
        return pd.DataFrame(
            {column: [getattr(layer, column) for layer in self.layers] for column in columns}
        )

    def _layers(self, steps: Steps, shape: Shape, path: str) -> Iterator[Layer]:
        """Layers of a sequence of steps on an input of some shape."""
        for index, step in enumerate(steps, start=1):
            for layer in self._expand(step, shape, path, index):
                yield layer
            shape = layer.output

    def _expand(self, step: Step, shape: Shape, path: str, index: int) -> Iterator[Layer]:
        """Layers of one step; the last one has the step's output."""
        match step:
            case Conv():
                yield self._conv(step, shape, f"{path}conv{index}")
            case Pool():
                yield _pool(step, shape, f"{path}pool{index}")
            case Dense():
                yield _dense(step, shape, f"{path}dense{index}")
            case Concat() | Add():
                outputs = []
                for number, branch in enumerate(step.branches, start=1):
                    output = shape
                    for layer in self._layers(branch, shape, f"{path}{step.name}/{number}/"):
                        yield layer
                        output = layer.output
                    outputs.append(output)
                yield _join(step, outputs, path + step.name)

    def _conv(self, step: Conv, shape: Shape, name: str) -> Layer:
        height, width, channels = shape
        kernel = (step.kernel,) * 2 if isinstance(step.kernel, int) else step.kernel
        output = (
            _length(height, kernel[0], step.stride, step.padding),
            _length(width, kernel[1], step.stride, step.padding),
            step.channels,
        )
        weights = math.prod(kernel) * channels // step.groups * step.channels
        return Layer(
            name,
            "conv",
            shape,
            output,
            kernel,
            step.stride,
            step.padding,
            step.groups,
            weights=weights,
            biases=step.channels * (self.conv_bias + self.normalisation),
            statistics=2 * step.channels if self.normalisation else 0,
            flops=2 * weights * output[0] * output[1],
        )


def _length(length: int, kernel: int, stride: int, padding: Padding) -> int:
    """Output length of a convolution or pooling along one axis."""
    if padding == "same":
        return math.ceil(length / stride)
    zeros = 0 if padding == "valid" else 2 * padding
    return (length + zeros - kernel) // stride + 1


def _pool(step: Pool, shape: Shape, name: str) -> Layer:
    height, width, channels = shape
    kernel = (height, width) if step.kernel is None else (step.kernel, step.kernel)
    padding = "valid" if step.kernel is None else step.padding
    output = (
        _length(height, kernel[0], step.stride, padding),
        _length(width, kernel[1], step.stride, padding),
        channels,
    )
    flops = math.prod(kernel) * math.prod(output)
    return Layer(
        name, f"{step.kind} pool", shape, output, kernel, step.stride, padding, flops=flops
    )


def _dense(step: Dense, shape: Shape, name: str) -> Layer:
    weights = math.prod(shape) * step.units
    output = (1, 1, step.units)
    return Layer(
        name, "dense", shape, output, weights=weights, biases=step.units, flops=2 * weights
    )


def _join(step: Concat | Add, outputs: list[Shape], name: str) -> Layer:
    """The layer in which branches meet."""
    height, width, channels = outputs[0]
    if isinstance(step, Concat):
        joined = (height, width, sum(output[2] for output in outputs))
        return Layer(name, "concat", joined, joined)
    read = (height, width, channels * len(outputs))
    return Layer(name, "add", read, outputs[0], flops=math.prod(read))
