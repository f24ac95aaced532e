"""The licence of every dependency is known and allows what the package's own does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| ([^|]+?) *\| ([^|]+?) *\| ([^|]+?) *\|$", re.MULTILINE)


@pytest.fixture(scope="module")
def licences() -> dict[tuple[str, str], str]:
    """Licence by name and version, as LICENSES.md lists them."""
    _, *rows = ROW.findall((ROOT / "LICENSES.md").read_text())  # the first is the heading
    return {(canonicalize_name(name), version): licence for name, version, licence in rows}


def test_every_pinned_package_is_listed(licences: dict[tuple[str, str], str]) -> None:
    """In the version that is installed; `make licences` after `make constraints`."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    missing = {(canonicalize_name(name), version) for name, version in pins} - set(licences)
    assert missing == set(), "run `make licences`"


def test_licences_allow_use_by_anybody(licences: dict[tuple[str, str], str]) -> None:
    """Free licences that ask nothing of what uses the package; some are known by their file."""
    free = "MIT|BSD|Apache|ISC|Python Software|PSF|MPL|Mozilla|Artistic|Public Domain"
    other = {name for (name, _), licence in licences.items() if not re.search(free, licence)}
    assert other == {"atheris", "ciw", "line-solver"}
