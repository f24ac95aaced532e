"""Utilisation over the time of a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.cluster import Cluster
from asgd_model.errors import InputError
from asgd_model.profile import Profile
from asgd_model.simulator import simulate

from .jobs import MB, chain, cluster, node


def test_by_hand():
    """Download until 1 s, computation until 1.5 s, upload until 2.5 s, and again."""
    result = simulate(
        chain(MB, 0.5, MB), cluster(), steps=2, warm_up=0, starts=[0], bins=[0, 0.5, 1.25, 2.5, 4]
    )
    table = result.utilisation_over_time()
    assert table.index.tolist() == [(0, 0.5), (0.5, 1.25), (1.25, 2.5), (2.5, 4)]
    assert table["server 0 send"].tolist() == pytest.approx([1, 0.5 / 0.75, 0, 1 / 1.5])
    assert table["worker 0 receive"].tolist() == pytest.approx([1, 0.5 / 0.75, 0, 1 / 1.5])
    assert table["worker 0 cpu"].tolist() == pytest.approx([0, 0.25 / 0.75, 0.25 / 1.25, 0.5 / 1.5])
    assert table["worker 0 send"].tolist() == pytest.approx([0, 0, 1 / 1.25, 0])
    assert table["server 0 cpu"].tolist() == [0, 0, 0, 0]
    kinds = ("cpu", "send", "receive")
    assert list(table) == [f"{name} 0 {kind}" for name in ("worker", "server") for kind in kinds]


def test_bins_end_with_the_run():
    """A bin that the run does not get through is left out; one that ends with it is not."""
    run = {"steps": 2, "warm_up": 0, "starts": [0]}
    result = simulate(chain(MB, 0.5, MB), cluster(), bins=[0, 2.5, 5.0, 7.5], **run)
    assert result.utilisation_over_time().index.tolist() == [(0, 2.5), (2.5, 5.0)]
    result = simulate(chain(MB, 0.5, MB), cluster(), bins=[100, 200], **run)
    assert len(result.utilisation_over_time()) == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.lists(st.floats(0.01, 5.0), min_size=1, max_size=30))
def test_bins_add_up_and_change_nothing(workers: int, lengths: list[float]):
    """Looking does not disturb, and what all bins hold is what was used until the last edge."""
    profile = chain(MB, [0.5, 1.0], MB, 0.2)
    nodes = cluster(workers, [node(threads=2)])
    plain = simulate(profile, nodes, steps=20)
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    watched = simulate(profile, nodes, steps=20, bins=edges)
    np.testing.assert_array_equal(watched.end, plain.end)
    np.testing.assert_array_equal(watched.used, plain.used)
    reached = edges[edges <= np.nanmax(plain.end)]
    table = watched.utilisation_over_time().to_numpy() * np.diff(reached)[:, np.newaxis]
    in_bins = (table.reshape(-1, *plain.capacity.shape) * plain.capacity).sum(axis=0)
    until = simulate(profile, nodes, steps=20, bins=[0.0, reached[-1]]).used_by_bin
    if len(reached) > 1:
        np.testing.assert_allclose(in_bins, until[1], rtol=1e-9, atol=1e-6)
        assert (until[1] <= plain.used * (1 + 1e-9)).all()


def test_agrees_with_the_window(alexnet: Profile):
    """A bin from the beginning to the end of the window has the utilisation of the window."""
    nodes = Cluster.like(alexnet, 3)
    first, last = simulate(alexnet, nodes, steps=6).window
    result = simulate(alexnet, nodes, steps=6, bins=[first, last])
    in_bin = result.utilisation_over_time().to_numpy().reshape(-1, 3)
    np.testing.assert_allclose(in_bin, result.busy, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bins", [[1.0, 1.0], [2.0, 1.0], [-1.0, 1.0], [0.0, np.inf], [[0.0, 1.0]]])
def test_bad_bins(bins: list[float]):
    """Edges that do not rise from 0 on are refused."""
    with pytest.raises(InputError, match="simulate: bins: found"):
        simulate(chain(MB, 1.0, MB), cluster(), bins=bins)


def test_a_run_without_bins():
    """The error says what is missing."""
    result = simulate(chain(MB, 1.0, MB), cluster())
    with pytest.raises(InputError, match=r"result: bins: found \[\]; expected the edges of a bin"):
        result.utilisation_over_time()
