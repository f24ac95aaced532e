"""The networks that the paper trains, as published.

Predictors that start from the architecture, not from a profile, find it here.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from asgd_model.errors import InputError


def _alexnet(widths: Sequence[int], *, groups: int = 1, first: Padding = "valid") -> Steps:
    """Five convolutions and three dense layers."""
    one, two, three, four, five = widths
    return (
        Conv(one, 11, 4, first),
        Pool("max", 3, 2, "valid"),
        Conv(two, 5, groups=groups),
        Pool("max", 3, 2, "valid"),
        Conv(three, 3),
        Conv(four, 3, groups=groups),
        Conv(five, 3, groups=groups),
        Pool("max", 3, 2, "valid"),
        Dense(4096),
        Dense(4096),
        Dense(1000),
    )


def _vgg(depths: Sequence[int]) -> Steps:
    """Stages of 3x3 convolutions, each followed by a pooling."""
    steps: list[Step] = []
    for depth, channels in zip(depths, (64, 128, 256, 512, 512), strict=True):
        steps += [Conv(channels, 3)] * depth
        steps.append(Pool("max", 2, 2, "valid"))
    return (*steps, Dense(4096), Dense(4096), Dense(1000))


def _inception_v1(name: str, *widths: int) -> Concat:
    """The module of GoogLeNet; widths as in the columns of the paper's table 1."""
    one, reduce_three, three, reduce_five, five, projection = widths
    return Concat(
        (
            (Conv(one, 1),),
            (Conv(reduce_three, 1), Conv(three, 3)),
            (Conv(reduce_five, 1), Conv(five, 5)),
            (Pool("max", 3), Conv(projection, 1)),
        ),
        f"inception{name}",
    )


def _googlenet() -> Steps:
    return (
        Conv(64, 7, 2),
        Pool("max", 3, 2),
        Conv(64, 1),
        Conv(192, 3),
        Pool("max", 3, 2),
        _inception_v1("3a", 64, 96, 128, 16, 32, 32),
        _inception_v1("3b", 128, 128, 192, 32, 96, 64),
        Pool("max", 3, 2),
        _inception_v1("4a", 192, 96, 208, 16, 48, 64),
        _inception_v1("4b", 160, 112, 224, 24, 64, 64),
        _inception_v1("4c", 128, 128, 256, 24, 64, 64),
        _inception_v1("4d", 112, 144, 288, 32, 64, 64),
        _inception_v1("4e", 256, 160, 320, 32, 128, 128),
        Pool("max", 3, 2),
        _inception_v1("5a", 256, 160, 320, 32, 128, 128),
        _inception_v1("5b", 384, 192, 384, 48, 128, 128),
        Pool("average"),
        Dense(1000),
    )


def _row(channels: int, length: int) -> Conv:
    return Conv(channels, (1, length))


def _column(channels: int, length: int) -> Conv:
    return Conv(channels, (length, 1))


def _row_and_column(channels: int) -> Concat:
    return Concat(((_row(channels, 3),), (_column(channels, 3),)))


def _pooled(channels: int) -> Steps:
    return (Pool("average", 3), Conv(channels, 1))


_HALVED = (Pool("max", 3, 2, "valid"),)


def _inception_v3() -> Steps:
    def fine(name: str, pooled: int) -> Concat:
        return Concat(
            (
                (Conv(64, 1),),
                (Conv(48, 1), Conv(64, 5)),
                (Conv(64, 1), Conv(96, 3), Conv(96, 3)),
                _pooled(pooled),
            ),
            name,
        )

    def middle(name: str, width: int) -> Concat:
        return Concat(
            (
                (Conv(192, 1),),
                (Conv(width, 1), _row(width, 7), _column(192, 7)),
                (
                    Conv(width, 1),
                    _column(width, 7),
                    _row(width, 7),
                    _column(width, 7),
                    _row(192, 7),
                ),
                _pooled(192),
            ),
            name,
        )

    def coarse(name: str) -> Concat:
        return Concat(
            (
                (Conv(320, 1),),
                (Conv(384, 1), _row_and_column(384)),
                (Conv(448, 1), Conv(384, 3), _row_and_column(384)),
                _pooled(192),
            ),
            name,
        )

    return (
        Conv(32, 3, 2, "valid"),
        Conv(32, 3, 1, "valid"),
        Conv(64, 3),
        Pool("max", 3, 2, "valid"),
        Conv(80, 1),
        Conv(192, 3, 1, "valid"),
        Pool("max", 3, 2, "valid"),
        fine("mixed0", 32),
        fine("mixed1", 64),
        fine("mixed2", 64),
        Concat(
            (
                (Conv(384, 3, 2, "valid"),),
                (Conv(64, 1), Conv(96, 3), Conv(96, 3, 2, "valid")),
                _HALVED,
            ),
            "mixed3",
        ),
        middle("mixed4", 128),
        middle("mixed5", 160),
        middle("mixed6", 160),
        middle("mixed7", 192),
        Concat(
            (
                (Conv(192, 1), Conv(320, 3, 2, "valid")),
                (Conv(192, 1), _row(192, 7), _column(192, 7), Conv(192, 3, 2, "valid")),
                _HALVED,
            ),
            "mixed8",
        ),
        coarse("mixed9"),
        coarse("mixed10"),
        Pool("average"),
        Dense(1000),
    )


def _inception_v4() -> Steps:
    def fine(name: str) -> Concat:
        return Concat(
            (
                (Conv(96, 1),),
                (Conv(64, 1), Conv(96, 3)),
                (Conv(64, 1), Conv(96, 3), Conv(96, 3)),
                _pooled(96),
            ),
            name,
        )

    def middle(name: str) -> Concat:
        return Concat(
            (
                (Conv(384, 1),),
                (Conv(192, 1), _row(224, 7), _column(256, 7)),
                (Conv(192, 1), _column(192, 7), _row(224, 7), _column(224, 7), _row(256, 7)),
                _pooled(128),
            ),
            name,
        )

    def coarse(name: str) -> Concat:
        return Concat(
            (
                (Conv(256, 1),),
                (Conv(384, 1), _row_and_column(256)),
                (Conv(384, 1), _row(448, 3), _column(512, 3), _row_and_column(256)),
                _pooled(256),
            ),
            name,
        )

    return (
        Conv(32, 3, 2, "valid"),
        Conv(32, 3, 1, "valid"),
        Conv(64, 3),
        Concat((_HALVED, (Conv(96, 3, 2, "valid"),)), "stem1"),
        Concat(
            (
                (Conv(64, 1), Conv(96, 3, 1, "valid")),
                (Conv(64, 1), _row(64, 7), _column(64, 7), Conv(96, 3, 1, "valid")),
            ),
            "stem2",
        ),
        Concat(((Conv(192, 3, 2, "valid"),), _HALVED), "stem3"),
        *(fine(f"A{index}") for index in range(1, 5)),
        Concat(
            (
                (Conv(384, 3, 2, "valid"),),
                (Conv(192, 1), Conv(224, 3), Conv(256, 3, 2, "valid")),
                _HALVED,
            ),
            "reductionA",
        ),
        *(middle(f"B{index}") for index in range(1, 8)),
        Concat(
            (
                (Conv(192, 1), Conv(192, 3, 2, "valid")),
                (Conv(256, 1), _row(256, 7), _column(320, 7), Conv(320, 3, 2, "valid")),
                _HALVED,
            ),
            "reductionB",
        ),
        *(coarse(f"C{index}") for index in range(1, 4)),
        Pool("average"),
        Dense(1000),
    )


def _resnet50() -> Steps:
    steps: list[Step] = [Conv(64, 7, 2), Pool("max", 3, 2)]
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=2):
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and stage > 2 else 1
            bottleneck = (Conv(width, 1, stride), Conv(width, 3), Conv(4 * width, 1))
            shortcut = (Conv(4 * width, 1, stride),) if block == 1 else ()
            steps.append(Add((bottleneck, shortcut), f"conv{stage}_{block}"))
    return (*steps, Pool("average"), Dense(1000))


ARCHITECTURES = {
    network.name: network
    for network in (
        Architecture(
            "alexnet",
            "Krizhevsky, Sutskever, Hinton, NIPS 2012: two towers",
            (227, 227, 3),
            _alexnet((96, 256, 384, 384, 256), groups=2),
        ),
        Architecture(
            "alexnet-ungrouped",
            "Krizhevsky, Sutskever, Hinton, NIPS 2012, both towers connected",
            (227, 227, 3),
            _alexnet((96, 256, 384, 384, 256)),
            family="alexnet",
        ),
        Architecture(
            "alexnet-one-tower",
            "Krizhevsky, arXiv 1404.5997, 2014, as in torchvision",
            (224, 224, 3),
            _alexnet((64, 192, 384, 256, 256), first=2),
            family="alexnet",
        ),
        Architecture(
            "alexnet-small",
            "a variant without padding of the first convolution, read off an execution trace",
            (224, 224, 3),
            _alexnet((64, 192, 384, 384, 256)),
            family="alexnet",
        ),
        Architecture(
            "googlenet",
            "Szegedy et al., CVPR 2015, without auxiliary classifiers",
            (224, 224, 3),
            _googlenet(),
        ),
        Architecture(
            "inception-v3",
            "Szegedy et al., CVPR 2016, as in Keras, without auxiliary classifier",
            (299, 299, 3),
            _inception_v3(),
            conv_bias=False,
            normalisation=1,
        ),
        Architecture(
            "inception-v4",
            "Szegedy et al., AAAI 2017, without auxiliary classifier",
            (299, 299, 3),
            _inception_v4(),
            conv_bias=False,
            normalisation=1,
        ),
        Architecture(
            "resnet-50",
            "He et al., CVPR 2016, as in Keras",
            (224, 224, 3),
            _resnet50(),
            normalisation=2,
        ),
        Architecture(
            "vgg-11",
            "Simonyan, Zisserman, ICLR 2015, configuration A",
            (224, 224, 3),
            _vgg((1, 1, 2, 2, 2)),
        ),
        Architecture(
            "vgg-16",
            "Simonyan, Zisserman, ICLR 2015, configuration D",
            (224, 224, 3),
            _vgg((2, 2, 3, 3, 3)),
        ),
    )
}
"""The known networks by name."""


def architecture(name: str, parameters: int | None = None) -> Architecture:
    """The network of this name.

    Parameters
    ----------
    name : str
        As in `ARCHITECTURES`; case and punctuation do not matter.
    parameters : int, optional
        Number of parameters, trained or all, which chooses among the variants of a family.

    Raises
    ------
    InputError
        If there is no such network, or none with about so many parameters.

    Examples
    --------
    >>> architecture("VGG16").parameters
    138357544
    >>> architecture("AlexNet", parameters=50_303_912).name
    'alexnet-small'
    """
    known = [
        network
        for network in ARCHITECTURES.values()
        if _plain(name) in (_plain(network.name), _plain(network.family))
    ]
    if not known:
        raise InputError("architecture", name, f"one of {', '.join(ARCHITECTURES)}")
    if parameters is None:
        return known[0]
    nearest = min(known, key=lambda network: abs(network.parameters - parameters))
    if not abs(nearest.parameters - parameters) <= 0.01 * nearest.parameters:
        sizes = ", ".join(f"{network.parameters:,}" for network in known)
        raise InputError("architecture", f"{name} with {parameters:,} parameters", f"about {sizes}")
    return nearest


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
