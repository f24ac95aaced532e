"""The public names: few, all there, and loaded only when they are used."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import asgd_model

ROOT = Path(__file__).parents[1]
HEAVY = ("matplotlib", "numba", "numpy", "pandas", "pydantic", "scipy", "seaborn", "tensorflow")
NEEDS_TENSORFLOW = "asgd_model.testbed"


def in_new_process(code: str) -> str:
    """What a new interpreter prints that executes the code."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def listed() -> dict[str, str]:
    """The names in the stub and the module that each one comes from."""
    tree = ast.parse(Path(asgd_model.__file__).with_suffix(".pyi").read_text())
    return {
        alias.asname or alias.name: node.module or ""
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def modules() -> list[str]:
    """All modules of the package that do not need TensorFlow and are not a command."""
    found = pkgutil.walk_packages(asgd_model.__path__, "asgd_model.", onerror=lambda _: None)
    names = [module.name for module in found]
    return [name for name in names if not name.startswith((NEEDS_TENSORFLOW, "asgd_model.__main"))]


def test_import_is_fast_and_light() -> None:
    """Under half a second, and nothing heavy is imported until it is needed."""
    code = (
        "import sys, time; begin = time.perf_counter(); import asgd_model;"
        "print(time.perf_counter() - begin);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    seconds, loaded = zip(*(in_new_process(code).splitlines() for _ in range(3)), strict=True)
    assert min(map(float, seconds)) < 0.5
    assert loaded == ("[]",) * 3


def test_profiles_load_without_the_simulator() -> None:
    """Who reads profiles does not wait for Numba, pandas and Matplotlib."""
    code = (
        "import sys, asgd_model; asgd_model.load_profile;"
        "print(*(name for name in ('numba', 'pandas', 'matplotlib') if name in sys.modules))"
    )
    assert in_new_process(code) == ""


def test_all_names_resolve() -> None:
    """Each name of the stub exists, is what its module defines, and nothing else is public."""
    names = listed()
    assert len(names) > 20
    assert sorted(asgd_model.__all__) == sorted(names)
    assert set(names) <= set(dir(asgd_model))
    for name, module in names.items():
        found = getattr(asgd_model, name)
        if module:
            assert found is getattr(importlib.import_module(f"asgd_model.{module}"), name)
        else:
            assert isinstance(found, ModuleType)
            assert found.__name__ == f"asgd_model.{name}"


def test_unknown_names_are_errors() -> None:
    """A misspelt name is no module that is imported by chance."""
    with pytest.raises(AttributeError, match="simulat"):
        asgd_model.simulat  # noqa: B018


def test_everything_public_is_documented() -> None:
    """Each function, class and module says what it is for."""
    documented = [name for name in listed() if not isinstance(getattr(asgd_model, name), tuple)]
    for name in documented:
        assert (getattr(asgd_model, name).__doc__ or "").strip(), name


@pytest.mark.parametrize(
    "before",
    [
        "import asgd_model.predict",
        "import asgd_model.accuracy, asgd_model.cli, asgd_model.simulator",
        "import asgd_model; asgd_model.METHODS; asgd_model.simulate",
        "import asgd_model; asgd_model.predict; import asgd_model.predict",
        "import asgd_model.sweep",
        "import asgd_model; asgd_model.sweep; import asgd_model.sweep",
    ],
)
def test_functions_are_not_hidden(before: str) -> None:
    """A module of the same name does not hide one, in whichever order things are imported."""
    code = f"{before}; from asgd_model import predict, sweep; print(type(predict), type(sweep))"
    assert in_new_process(code) == "<class 'function'> <class 'function'>"


@pytest.mark.parametrize("name", modules())
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the docstrings show is what happens, from the project's folder."""
    monkeypatch.chdir(ROOT)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_package_is_typed() -> None:
    """Type checkers of projects that use this one find its annotations."""
    assert Path(asgd_model.__file__).with_name("py.typed").exists()
