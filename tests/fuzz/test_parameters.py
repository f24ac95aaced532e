"""What a pipeline file says of a notebook's parameters is what the notebook gets, and no code."""

from __future__ import annotations

import ast
import math
from typing import Any

import nbformat
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from papermill.parameterize import parameterize_notebook

from asgd_model.errors import InputError
from asgd_model.pipeline import Pipeline

from .readers import project, read

texts = st.text(max_size=8) | st.sampled_from(
    [
        "'",
        '"',
        "\\",
        '"""',
        "'''",
        "{x}",
        "%s",
        "\n",
        "\r",
        "\u2028",
        '"; import os; "',
        "#",
        "\x00",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["x", "_", "größe", "dnn"]) | st.text(max_size=6)


def injected(parameters: dict[str, Any]) -> str:
    """The source of the cell that papermill adds."""
    tagged = new_code_cell("x = 0", metadata={"tags": ["parameters"]})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=[tagged], metadata={"kernelspec": kernel, "papermill": {}})
    made = parameterize_notebook(notebook, parameters, kernel_name="python3", language="python")
    assert isinstance(made, nbformat.NotebookNode)
    return str(made.cells[1].source)


@settings(max_examples=150, deadline=None)
@given(parameters=st.dictionaries(names, values, min_size=1, max_size=2))
@example(parameters={"x = 1; y": 1})
@example(parameters={"x": "'; import os; '"})
@example(parameters={"x": math.inf})
@example(parameters={"x": [math.nan]})
@example(parameters={"x": 10**5000})
def test_parameters(tmp_path_factory: pytest.TempPathFactory, parameters: dict[str, Any]) -> None:
    """Each accepted parameter becomes one assignment of a literal with its value."""
    folder = project(tmp_path_factory.mktemp("parameters"))
    run = {"name": "a", "notebook": "notebooks/a.ipynb", "parameters": parameters}
    try:
        text = yaml.safe_dump({"runs": [run]})
    except ValueError:  # an integer of more digits than Python writes
        text = (
            "runs: [{name: a, notebook: notebooks/a.ipynb, parameters: {x: 0x" + "f" * 5000 + "}}]"
        )
    pipeline = read("pipeline", folder, text.encode())
    if isinstance(pipeline, InputError):
        assert "parameters" in str(pipeline) or "YAML" in str(pipeline)
        return
    assert isinstance(pipeline, Pipeline)
    accepted = pipeline.runs[0].parameters
    assert accepted == parameters
    tree = ast.parse(injected(accepted))
    assigned = {}
    for statement in tree.body:
        assert isinstance(statement, ast.Assign)
        (target,) = statement.targets
        assert isinstance(target, ast.Name)
        assigned[target.id] = ast.literal_eval(statement.value)
    assert assigned == accepted
