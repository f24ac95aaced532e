"""The tables of layers against the published parameter counts and FLOPs."""

from __future__ import annotations

import numpy as np
import pytest

from asgd_model import InputError
from asgd_model.baselines.architectures import Add, Architecture, Concat, Conv, Dense, Pool
from asgd_model.baselines.networks import ARCHITECTURES, architecture

# Trained parameters, and all with the moving statistics of batch normalisation where they differ.
PARAMETERS = {
    "alexnet": 60_965_224,  # two towers, as in Caffe
    "alexnet-ungrouped": 62_378_344,
    "alexnet-one-tower": 61_100_840,  # torchvision
    "alexnet-small": 50_303_912,  # counted in an execution trace
    "googlenet": 6_998_552,  # Caffe's bvlc_googlenet without auxiliary classifiers
    "vgg-11": 132_863_336,  # torchvision
    "vgg-16": 138_357_544,  # torchvision and Keras
}
ALL_NUMBERS = {
    "inception-v3": 23_851_784,  # Keras
    "resnet-50": 25_636_712,  # Keras
}
MULTIPLY_ADDS = {
    "alexnet": (0.72e9, 0.01),  # Krizhevsky et al. state 0.7 G
    "alexnet-one-tower": (0.714e9, 0.01),  # torchvision
    "googlenet": (1.58e9, 0.01),  # Caffe's; Szegedy et al. state 1.5 G
    "inception-v3": (5.71e9, 0.01),  # torchvision
    "inception-v4": (12.27e9, 0.01),
    "resnet-50": (3.86e9, 0.01),  # He et al. state 3.8 G
    "vgg-11": (7.61e9, 0.01),  # torchvision
    "vgg-16": (15.47e9, 0.01),  # torchvision
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    """Shapes of all layers add up to the published number."""
    network = ARCHITECTURES[name]
    assert network.parameters == PARAMETERS[name]
    assert network.statistics == 0


@pytest.mark.parametrize("name", ALL_NUMBERS)
def test_parameter_counts_with_statistics(name: str) -> None:
    """Batch normalisation is counted as the published numbers count it."""
    network = ARCHITECTURES[name]
    assert network.parameters + network.statistics == ALL_NUMBERS[name]


def test_parameter_counts_of_other_libraries() -> None:
    """Variants of one network differ only in biases and scales, one number per channel."""
    channels = ARCHITECTURES["resnet-50"].statistics // 2
    assert ARCHITECTURES["resnet-50"].parameters - channels == 25_557_032  # torchvision: no biases
    for name, count in (("inception-v3", 23_834_568), ("inception-v4", 42_679_816)):
        network = ARCHITECTURES[name]  # PyTorch's normalisations also have scales
        assert network.parameters + network.statistics // 2 == count


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_multiply_adds(name: str) -> None:
    """FLOPs are those published for one example."""
    published, tolerance = MULTIPLY_ADDS[name]
    assert ARCHITECTURES[name].multiply_adds == pytest.approx(published, rel=tolerance)


def test_small_alexnet_has_the_tensors_of_its_trace() -> None:
    """The variant was read off a trace: bytes of its weights and sizes of its images."""
    layers = [layer for layer in ARCHITECTURES["alexnet-small"].layers if layer.weights]
    assert [4 * layer.weights for layer in layers] == [
        *(92_928, 1_228_800, 2_654_208, 5_308_416, 3_538_944),
        *(104_857_600, 67_108_864, 16_384_000),
    ]
    assert [layer.output[0] for layer in layers[:5]] == [54, 26, 12, 12, 12]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_fit_together(name: str) -> None:
    """All networks end in 1,000 classes, and no shape shrinks to nothing."""
    table = ARCHITECTURES[name].table()
    assert table["output"].iloc[-1] == (1, 1, 1000)
    assert min(map(min, table["output"])) >= 1
    assert table["name"].is_unique
    assert table["flops"].sum() == ARCHITECTURES[name].flops
    assert table["weight_bytes"].sum() == 4 * ARCHITECTURES[name].parameters


def test_convolution_by_definition() -> None:
    """Output shape and FLOPs of a convolution equal those of carrying it out."""
    steps = (Conv(6, (3, 5), stride=2, padding=1, groups=2),)
    layer = Architecture("one", "test", (9, 11, 4), steps).layers[0]
    image = np.zeros((9 + 2, 11 + 2))
    rows = range(0, image.shape[0] - 3 + 1, 2)
    columns = range(0, image.shape[1] - 5 + 1, 2)
    assert layer.output == (len(rows), len(columns), 6)
    assert layer.weights == 3 * 5 * 2 * 6  # each output channel sees one of two groups
    assert layer.flops == 2 * layer.weights * len(rows) * len(columns)
    assert layer.biases == 6


def test_branches() -> None:
    """Branches start from the same input; channels are put together or values added."""
    both = (Conv(2, 1),), (Pool("average", 3), Conv(3, 1))
    concat = Architecture("c", "test", (4, 4, 5), (Concat(both, "block"), Dense(7))).layers
    assert [layer.input for layer in concat[:3]] == [(4, 4, 5)] * 3
    assert concat[3].output == (4, 4, 5)
    assert concat[4].weights == 4 * 4 * 5 * 7
    added = Architecture("a", "test", (4, 4, 5), (Add(((Conv(5, 1),), ()), "sum"),)).layers
    assert added[-1].output == (4, 4, 5)
    assert added[-1].flops == 2 * 4 * 4 * 5


def test_lookup() -> None:
    """Names in any spelling; the number of parameters, trained or all, chooses the variant."""
    assert architecture("GoogLeNet").name == "googlenet"
    assert architecture("Inception_V3").name == "inception-v3"
    assert architecture("alexnet", 61_100_840).name == "alexnet-one-tower"
    assert architecture("ResNet50", 25_636_712).name == "resnet-50"
    with pytest.raises(InputError, match=r"lenet.*one of alexnet"):
        architecture("lenet")
    with pytest.raises(InputError, match=r"1,000 parameters.*about 138,357,544"):
        architecture("vgg-16", 1000)
