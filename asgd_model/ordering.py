"""Orders in which a worker's parameter transfers let its computation start early.

TIC and TAC are the heuristics of Hashemi, Jyothi and Campbell (TicTac, SysML 2019). Both look at
what each computation of the worker still waits for, directly or through others. A transfer that
has not been ordered yet is *outstanding*; its properties are

- the *communication time* M of the transfer itself,
- the *directly dependent load* P, the time of all computations that wait for this outstanding
  transfer and no other,
- the *impending load* M+, the least communication time, over the computations that wait for this
  and at least one other outstanding transfer, of all that such a computation waits for; infinite
  if there is none.

Only downloads with content are ordered. Those without are signals, which take no time and go
first; uploads have no order in the source and leave as they become ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, WORKER, Profile

if TYPE_CHECKING:
    import pandas as pd


def tic(profile: Profile) -> NDArray[np.int64]:
    """Timing-independent order: by impending load, each transfer counted as one.

    Source: TicTac, algorithm TIC. It needs the step graph only. Transfers that the rule does not
    tell apart share a rank.

    Returns
    -------
    ndarray of int64, shape (ops,)
        How many transfers of parameters precede the operation's, lowest first; 0 for all that
        is not ordered.

    Examples
    --------
    >>> import asgd_model
    >>> profile = asgd_model.load_profile(
    ...     "data/profiles/cpu-0.15-300mbit-reno/alexnet_b8.profile.json.gz"
    ... )
    >>> profile.names[tic(profile).argmax()]
    'edge_65_MatMul_2/ReadVariableOp'
    """
    transfers, waits = _waits(profile)
    _, _, impending = _properties(waits, np.ones(len(transfers)), np.zeros(len(waits)))
    ranks = np.zeros(profile.ops, dtype=np.int64)
    ranks[transfers] = np.searchsorted(np.sort(impending), impending)
    return ranks


def tac(
    profile: Profile, bandwidth: float | None = None, cores: float | None = None
) -> NDArray[np.int64]:
    """Timing-aware order: next the transfer whose computation hides the most communication.

    When a and then b are transferred, ``min(P_a, M_b)`` of b's transfer hides behind the
    computation that a releases. So a goes before b if that is more than ``min(P_b, M_a)``, or if
    it is equal and the impending load of a is less. After each choice the properties are computed
    anew. Source: TicTac, algorithm TAC. The comparison is not transitive; transfers are compared
    in the order of the step graph, the best so far with the next one. For computations that do
    not depend on each other it is Johnson's rule for two machines, which is optimal.

    Parameters
    ----------
    profile : Profile
        Gives the mean work of each computation and the bytes of each transfer.
    bandwidth : float, optional
        Payload rate of the link in bit/s; the profile's by default.
    cores : float, optional
        CPU capacity of the worker; the profile's by default. A computation uses one core at most.

    Returns
    -------
    ndarray of int64, shape (ops,)
        How many transfers of parameters precede the operation's, lowest first; 0 for all that
        is not ordered.

    Raises
    ------
    InputError
        If `bandwidth` or `cores` is not above 0.
    """
    known = profile.metadata
    rate = known.link_rate if bandwidth is None else bandwidth
    speed = known.worker_cores if cores is None else cores
    for name, value in (("bandwidth", rate), ("cores", speed)):
        if not value > 0.0:
            raise InputError("tac", value, "a number above 0", field=name)
    transfers, waits = _waits(profile)
    communication = profile.sizes[transfers].astype(np.float64) * (8.0 / rate)
    computation = profile.work[:, profile.resources == WORKER].mean(axis=0) / min(speed, 1.0)
    outstanding = np.arange(len(transfers))
    ranks = np.zeros(profile.ops, dtype=np.int64)
    for rank in range(len(transfers)):
        properties = _properties(waits[:, outstanding], communication[outstanding], computation)
        chosen = _next_transfer(*properties)
        ranks[transfers[outstanding[chosen]]] = rank
        outstanding = np.delete(outstanding, chosen)
    return ranks


def given(profile: Profile, names: Sequence[str]) -> NDArray[np.int64]:
    """An explicit order: downloads by their names, the first one first.

    Downloads that are not named come after those that are.

    Returns
    -------
    ndarray of int64, shape (ops,)
        The operation's position in `names`, or their number.

    Raises
    ------
    InputError
        If a name is given twice or is not that of a download.
    """
    ranks = np.full(profile.ops, len(names), dtype=np.int64)
    downloads = {profile.names[op]: op for op in np.flatnonzero(profile.resources == DOWNLINK)}
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise InputError("Cluster", twice, "each download once", field="stream_order")
    for position, name in enumerate(names):
        if name not in downloads:
            raise InputError("Cluster", name, "a download of the profile", field="stream_order")
        ranks[downloads[name]] = position
    return ranks


def compare_orders(profile: Profile) -> pd.DataFrame:
    """The parameters of a job and where each order puts them.

    Returns
    -------
    DataFrame
        One row per download with content, in the order of `tac`: `name`, `bytes`, `recorded`
        (mean position among the completions of a profiled step, from 0), `tic`, `tac`.
    """
    import pandas as pd

    transfers, _ = _waits(profile)
    completed = np.argsort(np.argsort(profile.end[:, transfers], axis=1, kind="stable"), axis=1)
    table = pd.DataFrame(
        {
            "name": [profile.names[op] for op in transfers],
            "bytes": profile.sizes[transfers],
            "recorded": completed.mean(axis=0),
            "tic": tic(profile)[transfers],
            "tac": tac(profile)[transfers],
        }
    )
    return table.sort_values("tac", ignore_index=True)


def _waits(profile: Profile) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Which transfers of parameters each computation of the worker waits for.

    Returns
    -------
    transfers : ndarray of int64, shape (transfers,)
        Downloads with content, as indices into the operations.
    waits : ndarray of bool, shape (computations of the worker, transfers)
        Whether the computation depends on the transfer, directly or through others. What comes
        before a transfer does not count: it is over when the transfer starts.
    """
    transfers = np.flatnonzero((profile.resources == DOWNLINK) & (profile.sizes > 0))
    column = {op: index for index, op in enumerate(transfers.tolist())}
    waits = np.zeros((profile.ops, len(transfers)), dtype=np.bool_)
    for op in profile.topological_order.tolist():
        if op in column:
            waits[op, column[op]] = True
        else:
            waits[op] = waits[profile.dependencies[op]].any(axis=0)
    return transfers, waits[profile.resources == WORKER]


def _properties(
    waits: NDArray[np.bool_],
    communication: NDArray[np.float64],
    computation: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """M, P and M+ of the outstanding transfers (module docstring), each of shape (transfers,)."""
    count = waits.sum(axis=1)
    directly = computation[count == 1] @ waits[count == 1]
    several = waits[count > 1]
    load = np.where(several, (several @ communication)[:, np.newaxis], np.inf)
    return communication, directly, load.min(axis=0, initial=np.inf)


def _next_transfer(
    communication: NDArray[np.float64],
    directly: NDArray[np.float64],
    impending: NDArray[np.float64],
) -> int:
    """Index of the transfer that goes next."""
    best = 0
    for other in range(1, len(communication)):
        hidden = min(directly[best], communication[other])
        if_swapped = min(directly[other], communication[best])
        if if_swapped > hidden or (if_swapped == hidden and impending[other] < impending[best]):
            best = other
    return best
