"""The data are what their description says, and no counter exceeds what there is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pandas as pd
import pytest
from frictionless import Detector, Resource, system

from asgd_model.measurements import load_measurements
from asgd_model.testbed.platform import Platform, load_platform

DATA = Path(__file__).parent.parent / "data"
PACKAGE = json.loads((DATA / "datapackage.json").read_text())
TABLES = [resource for resource in PACKAGE["resources"] if resource.get("type") == "table"]
RUNS = sorted((DATA / "measurements").glob("*.csv"))
UNDESCRIBED = {"README.md", "datapackage.json", "make.py", "describe.py"}
MOST_BYTES = 60e6
ROUNDING = 1.03
"""Of mean rates in a window whose ends the counters and the steps see at different times."""


def test_description_is_up_to_date() -> None:
    """It is what describe.py makes of the files that are there."""
    specification = importlib.util.spec_from_file_location("describe", DATA / "describe.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert PACKAGE["resources"] == list(module.resources(DATA))


def test_every_file_is_described() -> None:
    """No file of the folder is left out, but for the description itself."""
    described = {resource["path"] for resource in PACKAGE["resources"]}
    described |= {resource["schema"] for resource in TABLES} | UNDESCRIBED
    files = {path.relative_to(DATA).as_posix() for path in DATA.rglob("*") if path.is_file()}
    assert {file for file in files if "__pycache__" not in file} == described


def test_data_are_small() -> None:
    """A clone stays quick."""
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("resource", TABLES, ids=lambda resource: resource["path"])
def test_table_follows_its_schema(resource: dict[str, object]) -> None:
    """Every cell has its column's type and keeps its limits; keys are unique."""
    described = {**resource, "schema": json.loads((DATA / str(resource["schema"])).read_text())}
    with system.use_context(trusted=True):
        resource_found = Resource.from_descriptor(described, basepath=str(DATA))
        resource_found.detector = Detector(schema_sync=True)  # columns that were not recorded
        report = resource_found.validate()
    assert report.flatten(["rowNumber", "fieldName", "note"]) == []


@pytest.mark.parametrize(
    "schema", sorted((DATA / "schemas").glob("*.json")), ids=lambda path: path.stem
)
def test_every_column_is_explained(schema: Path) -> None:
    """Each has a description, and a unit if it is a number of something."""
    for field in json.loads(schema.read_text())["fields"]:
        assert field["description"]
        assert field["type"] != "number" or field["unit"]


@pytest.fixture(params=RUNS, ids=lambda path: path.stem)
def runs(request: pytest.FixtureRequest) -> pd.DataFrame:
    """The runs of one platform."""
    return load_measurements(request.param)


def platform_of(runs: pd.DataFrame) -> Platform | None:
    """Description of the platform of these runs, if the testbed measured them."""
    path = DATA / "platforms" / f"{runs['platform'].iloc[0]}.yaml"
    return load_platform(path) if path.exists() else None


def test_nothing_exceeds_its_capacity(runs: pd.DataFrame) -> None:
    """Links carry at most their rate; CPUs are used at most as far as their quotas allow."""
    platform = platform_of(runs)
    rate = 300e6 if platform is None else platform.link.rate
    for column in ("server_sent_bit_s", "server_received_bit_s"):
        assert (runs[column].dropna() <= rate * ROUNDING).all()
    if platform is not None:
        assert (runs["server_cores"] <= platform.server.cores * ROUNDING).all()
        assert (runs["worker_cores"] <= platform.worker.cores * ROUNDING).all()
