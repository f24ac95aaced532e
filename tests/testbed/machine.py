"""What tests need that run on a real cluster."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from asgd_model.testbed.errors import TestbedError
from asgd_model.testbed.machine import exclusive, require_root
from asgd_model.testbed.platform import Link, NodeLimits, Platform

FAST = Platform(
    name="fast",
    link=Link(rate=200e6),
    worker=NodeLimits(cores=0.2),
    server=NodeLimits(cores=0.3),
)
"""A platform for which any machine is large enough."""


def why_not(tensorflow: bool = False) -> str | None:
    """Why a cluster cannot be played here, if so."""
    try:
        require_root()
        if shutil.which("ip") is None or shutil.which("tc") is None:
            return "ip and tc are missing"
        if tensorflow and importlib.util.find_spec("tensorflow") is None:
            return "TensorFlow is missing"
        with exclusive():
            return None
    except TestbedError as error:
        return str(error)


@pytest.fixture
def cluster_machine() -> None:
    """Skip where the machine cannot play a cluster."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def training_machine() -> None:
    """Skip where the machine cannot train on a cluster."""
    if reason := why_not(tensorflow=True):
        pytest.skip(reason)
