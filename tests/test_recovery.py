"""What is recovered from intervals: work from a shared CPU, busy periods from transfers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asgd_model.recovery import busy_periods, recover_work


def seconds(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


NEVER = (seconds(), seconds(), seconds())


class TestRecoverWork:
    def test_alone(self) -> None:
        """One thread uses one core at most, or all that there is."""
        for cores, expected in ((0.25, 0.5), (1.0, 2.0), (4.0, 2.0)):
            work = recover_work(seconds(1), seconds(3), cores, *NEVER)
            assert work == pytest.approx([expected])

    def test_overlap(self) -> None:
        """Alone in [0, 1], shared in [1, 2], alone in [2, 4] on one core."""
        work = recover_work(seconds(0, 1), seconds(2, 4), 1.0, *NEVER)
        assert work == pytest.approx([1.5, 2.5])

    def test_communication(self) -> None:
        """Overlapping periods add up, and take at most all cores."""
        busy = (seconds(0, 1), seconds(2, 3), seconds(0.4, 0.9))
        work = recover_work(seconds(0), seconds(4), 1.0, *busy)
        assert work == pytest.approx([0.6 + 0.0 + 0.1 + 1.0])

    def test_no_duration(self) -> None:
        work = recover_work(seconds(1, 0), seconds(1, 2), 1.0, *NEVER)
        assert work == pytest.approx([0.0, 2.0])

    def test_no_operations(self) -> None:
        busy = (seconds(0), seconds(1), seconds(0.5))
        assert recover_work(seconds(), seconds(), 1.0, *busy).shape == (0,)
        assert recover_work(seconds(), seconds(), 1.0, *NEVER).shape == (0,)

    @settings(deadline=None)
    @given(
        jobs=st.lists(st.tuples(st.floats(0, 10), st.floats(0.001, 5)), min_size=1, max_size=8),
        cores=st.floats(0.1, 4),
        busy=st.lists(
            st.tuples(st.floats(0, 20), st.floats(0, 10), st.floats(0, 0.01)), max_size=3
        ),
    )
    def test_inverts_processor_sharing(
        self,
        jobs: list[tuple[float, float]],
        cores: float,
        busy: list[tuple[float, float, float]],
    ) -> None:
        """From the intervals of a processor-sharing CPU it finds the work that was put in."""
        arrival, work = (seconds(*column) for column in zip(*jobs, strict=True))
        table = np.array(busy, dtype=np.float64).reshape(-1, 3)
        busy_start, busy_end, busy_cores = table[:, 0], table[:, 0] + table[:, 1], table[:, 2]
        end = processor_sharing(arrival, work, cores, busy_start, busy_end, busy_cores)
        found = recover_work(arrival, end, cores, busy_start, busy_end, busy_cores)
        np.testing.assert_allclose(found, work, rtol=1e-6, atol=1e-6)


def processor_sharing(
    arrival: np.ndarray[Any, Any],
    work: np.ndarray[Any, Any],
    cores: float,
    busy_start: np.ndarray[Any, Any],
    busy_end: np.ndarray[Any, Any],
    busy_cores: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """When jobs end that share a CPU's cores equally, one core each at most."""
    left = work.copy()
    end = np.full(len(work), np.inf)
    changes = np.unique(np.concatenate([arrival, busy_start, busy_end]))
    now = changes[0]
    while np.isinf(end).any():
        running = (arrival <= now) & np.isinf(end)
        used = busy_cores[(busy_start <= now) & (now < busy_end)].sum()
        share = min(1.0, (cores - used) / max(running.sum(), 1))
        later = changes[changes > now]
        until = later[0] if len(later) else np.inf
        finish = np.where(running, now + left / share, np.inf)
        instant = min(until, finish.min())
        left[running] -= share * (instant - now)
        end[running & (finish <= instant)] = instant
        now = instant
    return end


class TestBusyPeriods:
    def test_one_large_among_small(self) -> None:
        """Transfers that touch or overlap share a period; the rate is its mean."""
        start, end, rate = busy_periods(
            seconds(0, 5, 1, 10), seconds(4, 6, 2, 12), seconds(90, 6, 10, 4)
        )
        np.testing.assert_allclose(start, [0, 5, 10])
        np.testing.assert_allclose(end, [4, 6, 12])
        np.testing.assert_allclose(rate, [25, 6, 2])

    def test_touching_transfers(self) -> None:
        start, end, rate = busy_periods(seconds(0, 1), seconds(1, 2), seconds(3, 1))
        assert (start, end, rate) == ([0], [2], [2])

    def test_no_duration(self) -> None:
        start, end, rate = busy_periods(seconds(1), seconds(1), seconds(3))
        assert len(start) == len(end) == len(rate) == 0

    @settings(deadline=None)
    @given(
        st.lists(
            st.tuples(st.floats(0, 100), st.floats(1e-6, 10), st.integers(0, 10**8)), max_size=30
        )
    )
    @example([])
    def test_conserves_and_covers(self, transfers: list[tuple[float, float, int]]) -> None:
        """All bytes move, periods are apart, and each transfer lies in exactly one."""
        table = np.array(transfers, dtype=np.float64).reshape(-1, 3)
        start, end = table[:, 0], table[:, 0] + table[:, 1]
        period_start, period_end, rate = busy_periods(start, end, table[:, 2])
        assert (rate * (period_end - period_start)).sum() == pytest.approx(table[:, 2].sum())
        assert (period_end[:-1] < period_start[1:]).all()
        inside = (period_start <= start[:, None]) & (end[:, None] <= period_end)
        assert (inside.sum(axis=1) == 1).all()
