"""How networks are written down, refused and shown, and how results are laid out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from asgd_model import InputError
from asgd_model.queueing import (
    ClosedNetwork,
    Station,
    delay,
    exact_convolution,
    exact_mva,
    fcfs,
    linearizer,
    load_dependent,
    multi_server,
    ps,
)

TWO = ClosedNetwork(
    [
        ps("uplink", {"fast": 0.04, "slow": 0.08}, visits={"fast": 2, "slow": 4}),
        multi_server("server <CPU>", 0.02, servers=9),
        delay("worker", {"fast": 0.5, "slow": 1.2}),
    ],
    population={"fast": 4, "slow": 2},
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ps("uplink", float("nan")),
            "station 'uplink': demand: found nan; expected finite",
        ),
        (lambda: ps("uplink", -0.1), "station 'uplink': demand: found -0.1"),
        (lambda: ps("uplink", {"a": 1.0, "b": float("inf")}), "demand: found inf"),
        (lambda: fcfs("uplink", "0.1"), "demand: found 0.1"),
        (lambda: fcfs("disk", 0.1, visits=0), "station 'disk': visits: found 0; expected a pos"),
        (lambda: load_dependent("link", 0.1, rates=[]), "rates: found no rates"),
        (lambda: load_dependent("link", 0.1, rates=[1, 0]), "rates: found 0"),
        (lambda: multi_server("cpu", 0.1, servers=0), "servers: found 0; expected at least one"),
        (lambda: Station("cpu", "lifo", 0.1), "kind: found lifo; expected one of ps, fcfs"),
        (lambda: Station("cpu", "ps", 0.1, rates=(2.0,)), "rates: found .*constant rate of 1"),
        (lambda: ClosedNetwork([], 3), "stations: found none"),
        (lambda: ClosedNetwork([ps("a", 1), ps("a", 2)], 3), "found a, a; expected names that"),
        (lambda: ClosedNetwork([ps("a", 1)], 0), "population: found .*0.*at least one customer"),
        (lambda: ClosedNetwork([ps("a", 1)], {}), "population: found {}"),
        (lambda: ClosedNetwork([ps("a", 1)], -1), "population: customer: found -1"),
        (lambda: ClosedNetwork([ps("a", 1)], {"b": 2.5}), "population: b: found 2.5"),
        (lambda: ClosedNetwork([ps("a", 0)], 1), "class 'customer': found no demand"),
        (
            lambda: ClosedNetwork([ps("a", {"fast": 1, "slwo": 2})], {"fast": 1, "slow": 1}),
            "station 'a': demand: found classes fast, slwo; expected classes fast, slow",
        ),
        (
            lambda: ClosedNetwork([ps("a", {"fast": 1})], {"fast": 1, "slow": 1}),
            "found classes fast; expected classes fast, slow",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    """The error names the station or class, the field, what was found and what was expected."""
    with pytest.raises(InputError, match=message):
        make()


def test_networks_do_not_change_after_validation():
    """Solvers trust the arrays, so nobody may write to them."""
    for array in (TWO.demands, TWO.visits, TWO.population):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_notebook_table_shows_every_number_and_escapes_names():
    """The HTML holds what the text holds; a name cannot inject markup."""
    html = TWO._repr_html_()
    for cell in ("fast 4, slow 2", "uplink", "0.04", "0.08", "0.5", "1.2", "1, 2, 3, ..., 9"):
        assert cell in html
        assert cell in repr(TWO)
    assert "server &lt;CPU&gt;" in html
    assert "<CPU>" not in html


@pytest.mark.parametrize("solve", [exact_mva, exact_convolution, linearizer])
def test_tables_of_results(solve):
    """Totals of the tables are consistent: cycle times, customers, visits."""
    solution = solve(TWO)
    stations, classes = solution.per_station(), solution.per_class()
    assert list(stations.index.names) == ["station", "class"]
    residence = stations["residence_time"].unstack("class")[list(TWO.classes)]
    np.testing.assert_allclose(residence.sum(), classes["cycle_time"])
    np.testing.assert_allclose(residence.drop("worker").sum(), classes["response_time"])
    np.testing.assert_allclose(
        classes["throughput"] * classes["cycle_time"], classes["population"], rtol=1e-8
    )
    np.testing.assert_allclose(
        stations.loc["uplink", "response_time"] * [2, 4], stations.loc["uplink", "residence_time"]
    )
    assert "uplink" in repr(solution)
    assert "uplink" in solution._repr_html_()


@pytest.mark.parametrize("solve", [exact_mva, exact_convolution, linearizer])
def test_a_class_without_customers_has_zeros(solve):
    """Sweeps over the mix of classes pass through populations of 0."""
    solution = solve(TWO.with_population({"fast": 4, "slow": 0}))
    alone = solve(
        ClosedNetwork(
            [ps("uplink", 0.04), multi_server("cpu", 0.02, servers=9), delay("worker", 0.5)], 4
        )
    )
    np.testing.assert_allclose(solution.queue_length[:, 0], alone.queue_length[:, 0], rtol=1e-8)
    assert not solution.per_station().xs("slow", level="class").to_numpy().any()


def test_import_is_light():
    """Numba and pandas are imported when they are first needed, not with the package."""
    code = "import sys, asgd_model.queueing; print({'numba', 'pandas'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr
