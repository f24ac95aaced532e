"""The predictors that the paper compares with, one module each.

Every one has a function ``predict(profile, clusters, measured=None)`` that returns the columns
of `asgd_model.prediction.prediction`. Most see only the profile of one worker; those
that are fitted to runs of several sizes say so in the column `sees`. A module is imported when it
is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from asgd_model.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from asgd_model.cluster import Cluster
    from asgd_model.profile import Profile

BASELINES = ("lin2018", "cynthia", "paleo", "optimus", "ernest", "ulanov", "yan", "shi")
"""Names of the predictors, which are also the names of their modules."""


class Predictor(Protocol):
    """What every method offers."""

    def __call__(
        self,
        profile: Profile,
        clusters: Sequence[Cluster],
        measured: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """Throughput of each cluster, one row each."""


def baseline(name: str) -> Predictor:
    """The ``predict`` function of the baseline with this name.

    Raises
    ------
    InputError
        If there is no such baseline.

    Examples
    --------
    >>> baseline("cynthia").__module__
    'asgd_model.baselines.cynthia'
    """
    if name not in BASELINES:
        raise InputError("baseline", name, f"one of {', '.join(BASELINES)}")
    predict: Predictor = import_module(f"{__name__}.{name}").predict
    return predict


def fitted_sizes(name: str) -> tuple[int, ...]:
    """Numbers of workers whose measurements a baseline is fitted to; none for most.

    Raises
    ------
    InputError
        If there is no such baseline.

    Examples
    --------
    >>> fitted_sizes("ernest"), fitted_sizes("paleo")
    ((1, 2, 4), ())
    """
    module = import_module(baseline(name).__module__)
    return getattr(module, "SIZES", ())
