"""When faster links and CPUs help, and why they sometimes do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.cluster import Cluster, Node
from asgd_model.profile import Profile
from asgd_model.simulator import simulate

from .jobs import MB, Job, chain, cluster, first_step, node


@st.composite
def layered_networks(draw: st.DrawFn) -> Profile:
    """Layers compute forward, each after its parameters, and backward, each sending gradients."""
    job = Job()
    sizes, works = st.integers(1000, 2 * MB), st.floats(0.01, 0.5)
    layers = [job.download(draw(sizes)) for _ in range(draw(st.integers(1, 4)))]
    done: tuple[int, ...] = ()
    for parameters in layers:
        done = (job.compute(draw(works), parameters, *done),)
    for _ in layers:
        done = (job.compute(draw(works), *done),)
        job.update(draw(works), job.upload(draw(sizes), *done))
    return job.profile()


def faster(cluster: Cluster, links: float = 1.0, cores: float = 1.0) -> Cluster:
    """The same cluster with links and CPUs that are so many times faster."""

    def better(n: Node) -> Node:
        return replace(
            n, cores=n.cores * cores, uplink=n.uplink * links, downlink=n.downlink * links
        )

    return replace(
        cluster,
        workers=tuple(map(better, cluster.workers)),
        servers=tuple(map(better, cluster.servers)),
    )


@settings(deadline=None, max_examples=100)
@given(
    layered_networks(),
    st.floats(0.2, 2.0),
    st.integers(1, 4),
    st.floats(1.0, 3.0),
    st.floats(1.0, 3.0),
)
def test_one_worker_gains_from_faster_nodes(profile, cores, threads, links_factor, cores_factor):
    """A step of a layered network takes no longer with faster links or CPUs.

    Its computations and its transfers keep their order, whatever their speed.
    """
    slow = cluster([node(cores=cores)], [node(cores=cores, threads=threads)])
    before = first_step(profile, slow).max()
    for links, cpus in ((links_factor, 1.0), (1.0, cores_factor)):
        assert first_step(profile, faster(slow, links, cpus)).max() <= before * (1 + 1e-9)


def test_faster_cpus_can_bring_workers_into_step():
    """Two workers that alternate lose when faster computation makes their steps coincide.

    Steps of 4 s (download 1 s, computation 2 s, upload 1 s) and a start 3 s later: the second
    worker downloads while the first one uploads, and neither waits. With computations of 1 s
    a step alone takes 3 s, so the second starts in step with the first; they share each link and
    leave it idle together, 5 s for each step. Phases last because nothing disturbs them.
    """
    profile = chain(download=MB, work=1.0, upload=MB)

    def step_times(cores: float) -> np.ndarray:
        result = simulate(
            profile,
            cluster([node(cores=cores)] * 2),
            steps=10,
            starts=[0.0, 3.0],
            stop_at_first=False,
        )
        return result.step_times

    assert step_times(cores=0.5) == pytest.approx(4.0)
    assert step_times(cores=1.0) == pytest.approx(5.0)


def test_faster_links_can_reorder_streams():
    """First come, first served lets a transfer that comes earlier delay a more urgent one.

    The gradient of 0.1 MB, ready after 1 s of computation, is followed by 3 s of updates. With
    links of 1 MB/s it leaves before the 5 MB that depend on the download, which takes 1.2 s.
    With links 1.5 times faster it leaves behind them.
    """
    job = Job()
    large = job.upload(5 * MB, job.download(1_200_000))
    update = job.update(3.0, job.upload(100_000, job.compute(1.0)))
    slow = first_step(job.profile(), cluster())
    fast = first_step(job.profile(), faster(cluster(), links=1.5))
    assert slow[0, [large, update]] == pytest.approx([1.2 + 5.0, 1.0 + 0.1 + 3.0])
    assert fast[0, [large, update]] == pytest.approx([6.2 / 1.5, 6.3 / 1.5 + 3.0])
    assert fast.max() > slow.max()
