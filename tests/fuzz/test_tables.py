"""Tables of measurements from anywhere: read as what they say, or refused."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgd_model.measurements import steps_of_run

from .readers import CORPUS, project, read

cells = (
    st.sampled_from(
        [
            *("", " ", "nan", "NaN", "inf", "-inf", "1e999", "-1", "0", "1.5", "1e3", "True", "NA"),
            *("9" * 30, "9" * 400, "0x10", "1j", "1_000", "٣", "\x00", "\x1b[2J", "None", "1 "),
            *('"', '""', '"a,b"', '"a\nb"', "a\rb", "'", "\\", "\ufeff", "x" * 1000),
        ]
    )
    | st.text(max_size=5)
    | st.integers().map(str)
    | st.floats().map(str)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize("reader", ["measurements", "steps"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_changed_tables(folder: Path, reader: str, data: st.DataObject) -> None:
    """A valid table in which cells, also those of the heading, are anything else.

    What is read has finite positive rates and times, whole positive counts, and each run once.
    """
    text = (CORPUS / reader / "good.csv").read_text()
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(data.draw(st.integers(1, 2))):
        row = data.draw(st.sampled_from(rows))
        match data.draw(st.sampled_from(["change", "change", "insert", "remove", "repeat"])):
            case "change":
                row[data.draw(st.integers(0, len(row) - 1))] = data.draw(cells)
            case "insert":
                row.insert(data.draw(st.integers(0, len(row))), data.draw(cells))
            case "remove" if len(row) > 1:
                del row[data.draw(st.integers(0, len(row) - 1))]
            case _:
                rows.append(row)
    content = "\n".join(",".join(row) for row in rows)
    table = read(reader, folder, content.encode(errors="surrogatepass"))
    if not isinstance(table, pd.DataFrame):
        return
    for column in ("batch_size", "parameter_servers", "workers", "repeat"):
        assert all(value >= 1 and value == int(value) for value in table[column])
    if reader == "measurements":
        assert all(0 < rate < math.inf for rate in table["steps_per_s"])
        assert all(0 < rate < math.inf for rate in table["examples_per_s"])
    else:
        start, end = steps_of_run(table[table["repeat"] == table["repeat"].iloc[0]].iloc[:1])
        assert 0 <= start[0, 0] < end[0, 0] < math.inf


@pytest.mark.parametrize("reader", ["measurements", "steps"])
@settings(max_examples=40, deadline=None)
@given(content=st.binary(min_size=1, max_size=80))
def test_any_bytes(folder: Path, reader: str, content: bytes) -> None:
    """No table, in no encoding."""
    read(reader, folder, content)
