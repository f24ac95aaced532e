"""A step as a chain of layers: the view of predictors that know the order of tensors, no graph.

A layer is one parameter tensor. The forward pass takes the tensors in the order in which the step
needs them, and each one releases the computations that waited for it and for nothing later. The
backward pass produces the gradients in their order, each after computations of its own. A step
graph with branches is thereby cut into one sequence; no computation and no byte is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, UPLINK, WORKER, Profile

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layers:
    """The layers of one step.

    Attributes
    ----------
    input_work : float
        Seconds of one core of computations that need no parameter, such as the input pipeline.
    parameter_bytes, forward_work : ndarray, shape (tensors,)
        In the order of first use: bytes of each tensor, and seconds of one core of the
        computations that wait for it last.
    backward_work, gradient_bytes : ndarray, shape (gradients,)
        In the order of their production: seconds of one core that each gradient takes beyond
        the ones before it, and its bytes.
    """

    input_work: float
    parameter_bytes: Floats
    forward_work: Floats
    backward_work: Floats
    gradient_bytes: Floats

    @classmethod
    def of(cls, profile: Profile) -> Layers:
        """Cut the step graph of a profile into layers.

        A computation belongs to the backward pass if it follows all parameters, and either
        yields or follows a gradient or is not needed for all of them: the loss is the last
        computation that all gradients wait for. A tensor is used before another if more of the
        forward pass depends on it; a gradient comes before another if it needs less of the
        backward pass. Work is the mean over the profiled steps.

        Raises
        ------
        InputError
            If the profile moves no tensor to the worker or none back.
        """
        downloads = np.flatnonzero((profile.resources == DOWNLINK) & (profile.sizes > 0)).tolist()
        uploads = np.flatnonzero((profile.resources == UPLINK) & (profile.sizes > 0)).tolist()
        for name, found in (("downlink", downloads), ("uplink", uploads)):
            if not found:
                raise InputError(profile.source, "none", f"a transfer over the {name}")
        needs, feeds = _closures(profile, downloads, uploads)
        work = profile.work.mean(axis=0)
        forward, backward = _passes(profile, needs, feeds, uploads)

        awaits = _members([needs[op] for op in forward], len(downloads))
        first_use = np.argsort(-awaits.sum(axis=0), kind="stable")
        input_work, latest_first = _assign(work[forward], awaits[:, first_use[::-1]])

        serves = _members([feeds[op] for op in backward], len(uploads))
        production = np.argsort(serves.sum(axis=0), kind="stable")
        unsent, backward_work = _assign(work[backward], serves[:, production])
        backward_work[0] += unsent  # such as a metric: it starts once the loss is known
        return cls(
            input_work=input_work,
            parameter_bytes=profile.sizes[downloads][first_use].astype(np.float64),
            forward_work=latest_first[::-1],
            backward_work=backward_work,
            gradient_bytes=profile.sizes[uploads][production].astype(np.float64),
        )


def _closures(
    profile: Profile, downloads: list[int], uploads: list[int]
) -> tuple[list[int], list[int]]:
    """Per operation, as bit sets: the downloads that it needs, the uploads that need it."""
    needs, feeds = [0] * profile.ops, [0] * profile.ops
    for index, op in enumerate(downloads):
        needs[op] = 1 << index
    for index, op in enumerate(uploads):
        feeds[op] = 1 << index
    order = profile.topological_order.tolist()
    for op in order:
        for dependency in profile.dependencies[op].tolist():
            needs[op] |= needs[dependency]
    for op in reversed(order):
        for dependency in profile.dependencies[op].tolist():
            feeds[dependency] |= feeds[op]
    return needs, feeds


def _passes(
    profile: Profile, needs: list[int], feeds: list[int], uploads: list[int]
) -> tuple[list[int], list[int]]:
    """The worker's operations of the forward and of the backward pass."""
    everything = max((needs[op] for op in uploads), key=int.bit_count)
    # An upload that needs less, such as a learning rate, skips the loss and is no gradient.
    gradients = [index for index, op in enumerate(uploads) if needs[op] == everything]
    all_gradients = sum(1 << index for index in gradients)
    follows_gradient = np.zeros(profile.ops, dtype=np.bool_)
    for index in gradients:
        follows_gradient[profile.dependencies[uploads[index]]] = True
    for op in profile.topological_order:
        follows_gradient[op] |= follows_gradient[profile.dependencies[op]].any()
    forward: list[int] = []
    backward: list[int] = []
    for op in np.flatnonzero(profile.resources == WORKER).tolist():
        spared = feeds[op] & all_gradients != all_gradients
        after_loss = needs[op] == everything and (spared or follows_gradient[op])
        (backward if after_loss else forward).append(op)
    return forward, backward


def _members(sets: list[int], size: int) -> NDArray[np.bool_]:
    """Bit sets as a table, shape (sets, size)."""
    width = (size + 7) // 8
    packed = b"".join(bits.to_bytes(width, "little") for bits in sets)
    octets = np.frombuffer(packed, dtype=np.uint8).reshape(len(sets), width)
    return np.unpackbits(octets, axis=1, count=size, bitorder="little").astype(np.bool_)


def _assign(work: Floats, members: NDArray[np.bool_]) -> tuple[float, Floats]:
    """Sum the work of each row at its first member: (work of rows without one, per column)."""
    some = members.any(axis=1)
    first = members.argmax(axis=1)[some]
    columns = np.bincount(first, weights=work[some], minlength=members.shape[1])
    return float(work[~some].sum()), columns.astype(np.float64)


def pipeline(ready: Floats, service: Floats) -> Floats:
    """Ends of tasks that one server takes in order, each not before it is ready.

    Parameters
    ----------
    ready, service : ndarray, shape (tasks,)
        When each task can start at the earliest, and how long it takes, in seconds.

    Returns
    -------
    ndarray, shape (tasks,)
        end_i = max(end_{i-1}, ready_i) + service_i, as seconds.

    Examples
    --------
    >>> pipeline(np.array([0.0, 1.0, 5.0]), np.array([2.0, 2.0, 1.0])).tolist()
    [2.0, 4.0, 6.0]
    """
    done = np.cumsum(service)
    ends: Floats = done + np.maximum.accumulate(ready - (done - service))
    return ends
