"""The figure to play with: what changes, what is assumed, sliders or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from asgd_model import interactive, plotting
from asgd_model.errors import InputError
from asgd_model.predict import predict
from asgd_model.profile import SERVER, WORKER, Profile


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be displayed in a notebook."""
    displayed: list[Any] = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    return displayed


class TestBatchSize:
    def test_only_the_workers_computation_grows(self, small: Profile) -> None:
        """With one profile in proportion; bytes and servers' work stay."""
        doubled = small.with_batch_size(8)
        assert doubled.metadata.batch_size == 8
        assert doubled.mean_work(WORKER) == pytest.approx(2 * small.mean_work(WORKER))
        assert doubled.mean_work(SERVER) == small.mean_work(SERVER)
        np.testing.assert_array_equal(doubled.sizes, small.sizes)

    def test_two_profiles_give_a_line(self, small: Profile) -> None:
        """A third more work for twice the batch is a sixth more for one and a half of it."""
        other = small.with_batch_size(8)
        factors = np.where(small.resources == WORKER, 4 / 3 / 2, 1.0)
        other.work[:] *= factors
        unit = small.mean_work(WORKER)
        assert other.mean_work(WORKER) == pytest.approx(4 / 3 * unit)
        assert small.with_batch_size(6, other).mean_work(WORKER) == pytest.approx(7 / 6 * unit)
        assert small.with_batch_size(8, other).mean_work(WORKER) == pytest.approx(4 / 3 * unit)
        assert small.with_batch_size(4, other).mean_work(WORKER) == pytest.approx(unit)

    @pytest.mark.parametrize("batch_size", [0, -1])
    def test_bad_batch(self, small: Profile, batch_size: int) -> None:
        with pytest.raises(InputError, match="with_batch_size: batch_size: found"):
            small.with_batch_size(batch_size)

    def test_no_second_point(self, small: Profile) -> None:
        with pytest.raises(InputError, match="another batch size than 4"):
            small.with_batch_size(8, small)

    def test_line_below_zero(self, small: Profile) -> None:
        """Four times the work for twice the batch leaves none for half of it."""
        other = small.with_batch_size(8)
        other.work[:] *= np.where(small.resources == WORKER, 2.0, 1.0)
        with pytest.raises(InputError, match="above 0"):
            small.with_batch_size(2, other)


class TestWhatIf:
    def test_as_profiled(self, small: Profile) -> None:
        """Without a change there is one curve, the prediction."""
        curves = interactive.what_if(small, 3, servers=1, batch_size=4, bandwidth=8e6)
        expected = predict(small, [1, 2, 3], methods=["queueing"])
        assert set(curves["case"]) == {"as profiled"}
        np.testing.assert_array_equal(curves["steps_per_s"], expected["steps_per_s"])

    def test_changes(self, small: Profile) -> None:
        """The second curve is the prediction of the changed job on the changed cluster."""
        curves = interactive.what_if(small, 2, servers=2, batch_size=8, bandwidth=80e6)
        assert list(dict.fromkeys(curves["case"])) == [
            "as profiled",
            "80 Mbit/s, 2 servers, batch 8",
        ]
        expected = predict(
            small.with_batch_size(8), [1, 2], servers=2, bandwidth=80e6, methods=["queueing"]
        )
        np.testing.assert_array_equal(curves["examples_per_s"][2:], expected["examples_per_s"])

    def test_refusals(self, small: Profile) -> None:
        with pytest.raises(InputError, match="most_workers: found 0"):
            interactive.what_if(small, 0)
        with pytest.raises(InputError, match="method: found magic"):
            interactive.what_if(small, method="magic")
        with pytest.raises(InputError, match="workers: found 5; expected 1 to 4"):
            interactive.throughput(small, workers=5, most_workers=4)


class TestFigure:
    def test_points_out_the_chosen_workers(self, small: Profile) -> None:
        """The title states what the marked point shows."""
        curves = interactive.what_if(small, 4, bandwidth=80e6)
        axes = plotting.what_if(curves, 2)
        chosen = curves["examples_per_s"].iloc[5]
        *_, marked = axes.lines
        assert marked.get_xydata().tolist() == [[2, chosen]]  # type: ignore[union-attr]
        scaling = 100 * chosen / (2 * curves["examples_per_s"].iloc[4])
        title = f"2 workers: {chosen:.3g} examples/s, {scaling:.0f} % of perfect scaling"
        assert axes.get_title() == title

    def test_static(self, small: Profile, shown: list[Any]) -> None:
        """Without widgets there is one figure, and nothing else to store."""
        interactive.throughput(small, widgets=False)
        (figure,) = shown
        assert isinstance(figure, Figure)

    def test_static_without_ipywidgets(
        self, small: Profile, shown: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where ipywidgets is not installed the figure is shown, unless sliders are demanded."""
        monkeypatch.setattr(interactive, "find_spec", lambda name: None)
        interactive.throughput(small)
        (figure,) = shown
        assert isinstance(figure, Figure)
        with pytest.raises(InputError, match="no ipywidgets"):
            interactive.throughput(small, widgets=True)

    def test_sliders(self, small: Profile, shown: list[Any]) -> None:
        """Each slider begins at its value, and moving it draws the figure anew."""
        pytest.importorskip("ipywidgets")
        interactive.throughput(small, workers=3, bandwidth=16e6, most_workers=4, widgets=True)
        panel = shown[-1]
        values = {slider.description: slider.value for slider in panel.children[:-1]}
        assert values == {"workers": 3, "bit/s": 16e6, "servers": 1, "batch": 4}
        drawn: list[tuple[int, set[str]]] = []

        def draw(curves: Any, workers: int) -> Any:
            drawn.append((workers, set(curves["case"])))
            return plotting.plt.subplots()[1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plotting, "what_if", draw)
            interactive.throughput(small, most_workers=4, widgets=True)
            panel = shown[-1]
            panel.update()
            for slider, value in zip(panel.children, (2, 8e7, 2, 8), strict=False):
                slider.value = value
        assert drawn[0] == (4, {"as profiled"})
        assert drawn[-1] == (2, {"as profiled", "80 Mbit/s, 2 servers, batch 8"})
