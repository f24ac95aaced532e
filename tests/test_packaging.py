"""What describes the package in several places says the same in all of them."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import asgd_model

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def by_name(lines: list[str]) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def direct_dependencies(pyproject: dict[str, Any], *extras: str) -> dict[str, Requirement]:
    project = pyproject["project"]
    chosen = [project["optional-dependencies"][extra] for extra in extras]
    return by_name(sum(chosen, project["dependencies"]))


def test_conda_environment_has_the_same_dependencies(pyproject: dict[str, Any]) -> None:
    """A user of conda gets what a user of pip gets, in the same versions."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (from_pip,) = (entry["pip"] for entry in listed if isinstance(entry, dict))
    assert from_pip[-1] == "-e ."
    conda = by_name([entry for entry in listed if isinstance(entry, str)] + from_pip[:-1])
    assert str(conda.pop("python").specifier) == pyproject["project"]["requires-python"]
    conda.pop("pip")
    expected = direct_dependencies(pyproject, "dask", "test")
    assert {name: requirement.specifier for name, requirement in conda.items()} == {
        name: requirement.specifier for name, requirement in expected.items()
    }


def test_constraints_pin_every_direct_dependency(pyproject: dict[str, Any]) -> None:
    """Each direct dependency has one exact version that pyproject allows, from no local path."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = by_name([line for line in lines if line and not line.startswith("#")])
    assert all(re.fullmatch(r"==[^*]+", str(pin.specifier)) for pin in pins.values())
    assert all(pin.url is None for pin in pins.values())
    assert canonicalize_name(pyproject["project"]["name"]) not in pins
    extras = set(pyproject["project"]["optional-dependencies"]) - {"testbed"}
    for name, requirement in direct_dependencies(pyproject, *extras).items():
        assert name in pins, f"{name} is not in constraints.txt: run `make constraints`"
        (pin,) = pins[name].specifier
        assert requirement.specifier.contains(pin.version), name


def test_version_comes_from_one_place(pyproject: dict[str, Any]) -> None:
    """Only the package's own module says the version; the newest change log entry is about it."""
    assert pyproject["project"]["dynamic"] == ["version"]
    assert "version" not in pyproject["project"]
    assert pyproject["tool"]["hatch"]["version"]["path"] == "asgd_model/__init__.py"
    assert importlib.metadata.version("asgd-model") == asgd_model.__version__
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == asgd_model.__version__


def test_citation_names_the_paper() -> None:
    """CITATION.cff has the keys that the format requires and cites the ICPE 2020 paper."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["title"]
    assert citation["authors"]
    (paper,) = citation["references"]
    assert paper["type"] == "conference-paper"
    assert paper["title"] == "Throughput Prediction of Asynchronous SGD in TensorFlow"
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Li", "Yan", "Paolieri", "Golubchik"]
    assert (paper["doi"], paper["year"]) == ("10.1145/3358960.3379141", 2020)
    assert (paper["start"], paper["end"]) == (76, 87)
