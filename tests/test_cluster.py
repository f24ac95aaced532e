"""A cluster is possible, and variables are spread over its servers as TensorFlow spreads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgd_model.cluster import (
    MAX_NODES,
    Cluster,
    Node,
    Slowdown,
    Synchronous,
    bytes_per_server,
    placement,
)
from asgd_model.errors import InputError
from asgd_model.profile import DOWNLINK, SERVER, UPLINK, WORKER, Metadata, Profile

NODE = Node(cores=1.0, uplink=1e9, downlink=2e9)
HUGE = 10**400


@pytest.mark.parametrize("field", ["cores", "uplink", "downlink"])
@pytest.mark.parametrize(
    "value", [0, 0.0, -1, float("nan"), float("inf"), -float("inf"), HUGE, True, "1", None]
)
def test_impossible_capacities(field: str, value: Any) -> None:
    """A capacity is a finite number above 0; the error names the field and the value."""
    with pytest.raises(InputError) as caught:
        replace(NODE, **{field: value})
    assert str(caught.value).startswith(f"Node: {field}: found {str(value)[:200]}")
    assert str(caught.value).endswith("; expected a finite number above 0")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_impossible_threads(value: Any) -> None:
    """Threads are counted."""
    with pytest.raises(InputError) as caught:
        replace(NODE, threads=value)
    assert str(caught.value) == f"Node: threads: found {value}; expected an integer of at least 1"


@pytest.mark.parametrize("value", [1, 0.5, np.float64(2), np.float32(0.5), np.int64(3)])
def test_numbers_of_any_type(value: Any) -> None:
    """Numbers computed with NumPy are as good as Python's."""
    assert Node(cores=value, uplink=value, downlink=value).cores == value
    cluster = Cluster((NODE,), (NODE,), stream_window=np.int64(4096))
    assert cluster.stream_window == 4096


@pytest.mark.parametrize("field", ["workers", "servers"])
def test_a_cluster_has_nodes(field: str) -> None:
    """Neither without workers nor without servers is there anything to predict."""
    with pytest.raises(InputError) as caught:
        Cluster(**{"workers": (NODE,), "servers": (NODE,), field: ()})
    assert str(caught.value) == f"Cluster: {field}: found none; expected at least one node"


@pytest.mark.parametrize("order", ["lifo", "", "Profile", None, ["fifo"]])
def test_unknown_stream_order(order: Any) -> None:
    """The error lists the orders that there are."""
    with pytest.raises(InputError) as caught:
        Cluster((NODE,), (NODE,), stream_order=order)
    expected = "one of profile, fifo, random, tic, tac, shared or a tuple of names"
    assert str(caught.value) == f"Cluster: stream_order: found {order}; expected {expected}"


@pytest.mark.parametrize("window", [0, -1, 1.5, float("nan"), True, "4096"])
def test_impossible_window(window: Any) -> None:
    """A window is None or a number of bytes."""
    with pytest.raises(InputError) as caught:
        Cluster((NODE,), (NODE,), stream_window=window)
    assert str(caught.value) == (
        f"Cluster: stream_window: found {window}; expected None or a number of bytes above 0"
    )


def test_like_takes_what_the_profile_says(small: Profile) -> None:
    """Without options, one worker on the nodes that were measured."""
    metadata = Metadata(
        dnn="small",
        batch_size=1,
        link_rate=5e6,
        worker_cores=0.5,
        server_cores=2.0,
        worker_threads=3,
        server_threads=4,
        stream_window=1000,
        calibration=small.metadata.calibration,
    )
    cluster = Cluster.like(replace(small, metadata=metadata))
    assert cluster == Cluster(
        workers=(Node(cores=0.5, uplink=5e6, downlink=5e6, threads=3),),
        servers=(Node(cores=2.0, uplink=5e6, downlink=5e6, threads=4),),
        stream_order="profile",
        stream_window=1000,
        calibration=small.metadata.calibration,
    )


def test_like_has_as_many_servers_as_the_profiled_job(small: Profile) -> None:
    """The highest server in the profile counts."""
    spread = replace(small, servers=placement(small, 2))
    assert len(Cluster.like(spread, 3).servers) == 2
    assert len(Cluster.like(spread, 3, 1).servers) == 1


def test_like_takes_options_first(small: Profile) -> None:
    """Each option changes what it names and nothing else."""
    plain = Cluster.like(small)
    node = plain.workers[0]
    fast = replace(node, uplink=1e9, downlink=1e9)
    assert Cluster.like(small, 2, 3) == replace(plain, workers=(node,) * 2, servers=(node,) * 3)
    assert Cluster.like(small, bandwidth=1e9) == replace(plain, workers=(fast,), servers=(fast,))
    assert Cluster.like(small, worker_cores=2) == replace(plain, workers=(replace(node, cores=2),))
    assert Cluster.like(small, server_cores=2) == replace(plain, servers=(replace(node, cores=2),))
    assert Cluster.like(small, stream_order="fifo") == replace(plain, stream_order="fifo")
    assert Cluster.like(small, stream_window=7) == replace(plain, stream_window=7)
    assert Cluster.like(small, stream_window=None) == replace(plain, stream_window=None)
    slow = Slowdown(factor=2.0)
    slower = replace(plain, workers=(replace(node, slowdown=slow),))
    assert Cluster.like(small, slowdown=slow) == slower
    waiting = Synchronous(backups=0, late="abandon")
    assert Cluster.like(small, synchronous=waiting) == replace(plain, synchronous=waiting)


@pytest.mark.parametrize("field", ["workers", "servers"])
@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2", MAX_NODES + 1, HUGE])
def test_impossible_counts(small: Profile, field: str, count: Any) -> None:
    """Nodes are counted from 1, and not without end."""
    with pytest.raises(InputError) as caught:
        Cluster.like(small, **{field: count})
    assert str(caught.value).startswith(f"Cluster: {field}: found {str(count)[:200]}")
    assert str(caught.value).endswith("; expected an integer from 1 to 1000000")


def test_a_profile_of_too_many_servers(small: Profile) -> None:
    """An index that a file may contain does not use up the memory."""
    wild = replace(small, servers=np.where(small.servers < 0, -1, 2**31 - 1).astype(np.int32))
    with pytest.raises(InputError, match=r"Cluster: servers: found 2147483648; expected an integ"):
        Cluster.like(wild)


@pytest.mark.parametrize("bandwidth", [0, -1.0, float("nan")])
def test_impossible_bandwidth(small: Profile, bandwidth: float) -> None:
    """A bandwidth that no link has is refused with the links that it would be for."""
    with pytest.raises(InputError, match=r"Node: uplink: found .*; expected a finite number"):
        Cluster.like(small, bandwidth=bandwidth)


def test_with_workers(small: Profile) -> None:
    """All like the first; the rest of the cluster stays."""
    cluster = replace(Cluster.like(small, 2, 2), workers=(NODE, replace(NODE, cores=9)))
    assert cluster.with_workers(3) == replace(cluster, workers=(NODE,) * 3)
    for count in (0, -1, True, 1.0):
        with pytest.raises(InputError, match=rf"Cluster: workers: found {count}; expected an int"):
            cluster.with_workers(count)  # type: ignore[arg-type]


# --- placement ------------------------------------------------------------------------------

FIRST = [0, 2, 9, 11]
"""Operations of the small profile's first variable: read, receive, send, update."""
SECOND = [1, 3, 8, 10]


def test_recorded_placement_is_kept(small: Profile) -> None:
    """With the profiled number of servers nothing moves, however it was placed."""
    reverse = placement(small, 2)
    reverse = np.where(reverse >= 0, 1 - reverse, -1).astype(np.int32)
    spread = replace(small, servers=reverse)
    np.testing.assert_array_equal(placement(spread, 2), reverse)


def test_one_server_holds_all(small: Profile) -> None:
    """A job profiled on two servers is predicted for one."""
    spread = replace(small, servers=placement(small, 2))
    np.testing.assert_array_equal(placement(spread, 1), small.servers)


@pytest.mark.parametrize("servers", [2, 3, 50])
def test_variables_go_round_robin(small: Profile, servers: int) -> None:
    """First variable to the first server, second to the second; transfers go with them."""
    placed = placement(small, servers)
    assert placed[FIRST].tolist() == [0] * 4
    assert placed[SECOND].tolist() == [1] * 4
    assert placed[small.resources == WORKER].tolist() == [-1] * 4


def test_order_is_that_of_first_use(small: Profile) -> None:
    """The variable that the worker needs first goes first, whatever its place in the file."""
    swapped = list(small.dependencies)
    swapped[4] = np.array([3], dtype=np.int32)  # forward first: needs the second variable
    swapped[5] = np.array([2, 4], dtype=np.int32)
    placed = placement(replace(small, dependencies=tuple(swapped)), 2)
    assert placed[SECOND].tolist() == [0] * 4
    assert placed[FIRST].tolist() == [1] * 4


def test_variables_must_be_known(small: Profile) -> None:
    """Without the operations that hold variables there is nothing to spread."""
    unknown = replace(small, kinds=("Op",) * small.ops, source="some.profile.json")
    assert placement(unknown, 1).max() == 0
    with pytest.raises(InputError) as caught:
        placement(unknown, 2)
    assert str(caught.value) == (
        "some.profile.json: ops.kind: found no variables; expected operations of kind "
        "VarHandleOp, Variable, VariableV2 to spread over servers"
    )


def test_signals_do_not_count_as_use(small: Profile) -> None:
    """A worker that waits early for a signal about a variable does not need its value early."""
    signal = small.ops
    extended = replace(
        small,
        names=(*small.names, "signal", "wait"),
        kinds=(*small.kinds, "RecvTensor", "Identity"),
        resources=np.append(small.resources, [DOWNLINK, WORKER]).astype(np.int8),
        servers=np.append(small.servers, [0, -1]).astype(np.int32),
        sizes=np.append(small.sizes, [0, 0]),
        dependencies=(
            *small.dependencies,
            np.array([1], dtype=np.int32),
            np.array([signal], dtype=np.int32),
        ),
        **{
            name: np.pad(getattr(small, name), ((0, 0), (0, 2)))
            for name in ("work", "start", "end")
        },
    )
    placed = placement(extended, 2)
    assert placed[FIRST].tolist() == [0] * 4
    assert placed[[*SECOND, signal]].tolist() == [1] * 5


def test_variables_that_no_worker_needs_come_last(small: Profile) -> None:
    """The step counter is updated on its server and never sent."""
    counter = small.ops
    extended = replace(
        small,
        names=("counter", *small.names, "count"),
        kinds=("VarHandleOp", *small.kinds, "AssignAddVariableOp"),
        resources=np.concatenate([[SERVER], small.resources, [SERVER]]).astype(np.int8),
        servers=np.concatenate([[0], small.servers, [0]]).astype(np.int32),
        sizes=np.concatenate([[0], small.sizes, [0]]),
        dependencies=(
            np.array([], dtype=np.int32),
            *(row + np.int32(1) for row in small.dependencies),
            np.array([0, counter], dtype=np.int32),
        ),
        **{
            name: np.pad(getattr(small, name), ((0, 0), (1, 1)))
            for name in ("work", "start", "end")
        },
    )
    placed = placement(extended, 3)
    assert placed[[1 + op for op in FIRST]].tolist() == [0] * 4
    assert placed[[1 + op for op in SECOND]].tolist() == [1] * 4
    assert placed[0] == 2


def test_weights_and_biases_alternate(alexnet: Profile) -> None:
    """AlexNet's layers in their order, each its weights and then its biases."""
    placed = placement(alexnet, 16)
    variables = {alexnet.names[op]: placed[op] for op in range(alexnet.ops)}
    layers = [f"{kind}{index}" for kind, index in zip("cccccfff", range(1, 9), strict=True)]
    names = [f"{layer}/{part}" for layer in layers for part in "wb"]
    assert [variables[name] for name in names] == list(range(16))


@given(servers=st.integers(1, 20))
def test_placement_of_a_real_job(alexnet: Profile, servers: int) -> None:
    """AlexNet's 16 variables: each is on one server, with all of its bytes in both directions."""
    placed = placement(alexnet, servers)
    np.testing.assert_array_equal(placed == -1, alexnet.resources == WORKER)
    assert placed.max() == min(servers, 16) - 1
    for resource in (DOWNLINK, UPLINK):
        chosen = alexnet.resources == resource
        large = chosen & (alexnet.sizes > 100)
        counts = np.bincount(placed[large], minlength=servers)
        assert counts.max() - counts.min() <= 1, "round robin"
    down, up = (
        np.bincount(placed[chosen], alexnet.sizes[chosen], minlength=servers)
        for chosen in (alexnet.resources == DOWNLINK, alexnet.resources == UPLINK)
    )
    np.testing.assert_allclose(up, down, rtol=1e-3)
    for op in np.flatnonzero(alexnet.resources == SERVER):
        for dependency in alexnet.dependencies[op]:
            if alexnet.resources[dependency] == UPLINK and alexnet.sizes[dependency] > 100:
                assert placed[dependency] == placed[op], "a gradient goes where it is applied"


def test_bytes_per_server(small: Profile) -> None:
    """Variables of 1 and 3 MB: on one server together, on two one each, in both directions."""
    table = bytes_per_server(small, 1)
    assert table.to_dict("list") == {"sent": [4_000_000], "received": [4_000_000], "share": [1.0]}
    table = bytes_per_server(small, 2)
    assert table["sent"].tolist() == table["received"].tolist() == [1_000_000, 3_000_000]
    assert table["share"].tolist() == [0.25, 0.75]


# --- hosts ----------------------------------------------------------------------------------


def test_hosts() -> None:
    """Nodes of the same name are on one machine, and say the same of it."""
    cluster = Cluster((NODE, NODE), (NODE,))
    assert not cluster.shares_hosts
    apart = cluster.on_hosts(["a", "b"], ["c"])
    assert [node.host for node in (*apart.workers, *apart.servers)] == ["a", "b", "c"]
    assert not apart.shares_hosts
    assert cluster.on_hosts(["a", "b"], ["a"]).shares_hosts
    with pytest.raises(InputError) as caught:
        replace(apart, servers=(replace(NODE, host="a", uplink=5.0),))
    assert str(caught.value) == "host a: uplink: found 5.0; expected 1e+09 as on all its nodes"
    threads = replace(NODE, host="a", threads=4)
    assert replace(apart, servers=(threads,)).shares_hosts


@pytest.mark.parametrize("hosts", [["a"], ["a", "b", "c"], "ab", []])
def test_each_node_has_a_host(hosts: Any) -> None:
    """As many names as nodes."""
    with pytest.raises(InputError, match=r"Cluster: workers: found .*; expected 2 names of hosts"):
        Cluster((NODE, NODE), (NODE,)).on_hosts(hosts, ["s"])


@pytest.mark.parametrize("host", ["", 1, b"a", ["a"]])
def test_impossible_hosts(host: Any) -> None:
    """A host has a name."""
    with pytest.raises(InputError, match=r"Node: host: found .*; expected None or a name"):
        replace(NODE, host=host)
