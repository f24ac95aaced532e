"""The wheel and the sdist hold what they should, and work without the project's folder.

The wheel ships the library alone. Data, notebooks and tests are in the repository and in the
sdist: a user gives the path of a profile, the library does not look for any.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import asgd_model

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "data/profiles/cpu-0.15-300mbit-reno/googlenet_b4.profile.json.gz"


def build(kind: str, project: Path, folder: Path) -> Path:
    """Build a wheel or an sdist of a project's folder, in a process of its own."""
    code = f"import sys; from hatchling.build import build_{kind} as build; build(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=project, check=True, capture_output=True
    )
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content as it would lie among the installed packages."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def files_of(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def run(installed: Path, folder: Path, *arguments: object) -> str:
    """Run Python in another folder, where only the unpacked wheel has the library."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={"PYTHONPATH": str(installed), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_is_the_library_alone(wheel: Path) -> None:
    """All modules, the stub that lists the public names, and the mark of typed packages."""
    package = ROOT / "asgd_model"
    modules = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in package.rglob(pattern)
    }
    information = f"asgd_model-{asgd_model.__version__}.dist-info/"
    shipped = {name for name in files_of(wheel) if not name.startswith(information)}
    assert shipped == modules
    assert f"{information}licenses/LICENSE" in files_of(wheel)


def test_metadata(wheel: Path) -> None:
    """Version, licence and the command are those of the project."""
    archive = zipfile.ZipFile(wheel)
    information = f"asgd_model-{asgd_model.__version__}.dist-info"
    metadata = Parser().parsestr(archive.read(f"{information}/METADATA").decode())
    assert metadata["Name"] == "asgd-model"
    assert metadata["Version"] == asgd_model.__version__
    assert metadata["License-Expression"] == "MIT"
    assert "# asgd_model" in metadata.get_payload()
    commands = archive.read(f"{information}/entry_points.txt").decode()
    assert commands.split() == ["[console_scripts]", "asgd-model", "=", "asgd_model.cli:main"]


def test_works_in_another_folder(installed: Path, tmp_path: Path) -> None:
    """Library and command come from the wheel, and predict from a profile given by its path."""
    found = run(installed, tmp_path, "-c", "import asgd_model; print(asgd_model.__file__)")
    assert Path(found.strip()).is_relative_to(installed)
    version = run(installed, tmp_path, "-m", "asgd_model", "--version")
    assert version == f"asgd-model, version {asgd_model.__version__}\n"
    options = ("--workers", "2", "--methods", "queueing", "--format", "csv")
    table = run(installed, tmp_path, "-m", "asgd_model", "predict", PROFILE, *options)
    header, row = table.splitlines()
    assert header.startswith("method,workers,servers,steps_per_s")
    assert row.startswith("queueing,2,1,0.")
    assert list(tmp_path.iterdir()) == [] or all(
        path.name.startswith(".") for path in tmp_path.iterdir()
    )


def test_sdist_makes_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Who builds from the sdist gets what the repository gives."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (project,) = folder.iterdir()
    for name in ("tests", "docs", "data/README.md", "notebooks/pipeline.yaml", "Makefile"):
        assert (project / name).exists(), name
    again = build("wheel", project, tmp_path_factory.mktemp("again"))
    assert again.name == wheel.name
    assert files_of(again) == files_of(wheel)
