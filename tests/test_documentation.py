"""Every code example of the documentation runs, page by page, from a copy of the project."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from asgd_model import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
LANGUAGES = ("python", "console", "yaml")


class Example(NamedTuple):
    """A fenced block of a page: its language, what it requires, its text and its line."""

    language: str
    requires: str
    code: str
    line: int


def examples(page: Path) -> list[Example]:
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        language, _, requires = fence["info"].partition(" requires=")
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Example(language, requires, fence["code"], line))
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write to that holds what the examples read."""
    for name in ("data", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_commands(code: str, only_options: bool) -> None:
    """Run the lines after a prompt; or only see that the command has such options."""
    for text in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        program, *arguments = shlex.split(text.replace("\\\n", " "))
        assert program == cli.NAME
        if only_options:
            arguments.append("--help")
        done = CliRunner().invoke(cli.commands, arguments)
        assert done.exit_code == 0, f"{text}{done.output}{done.exception!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, project: Path) -> None:
    """Blocks of a page share their names, as in a notebook."""
    names: dict[str, object] = {"__name__": "example"}
    for example in examples(page):
        assert example.language in LANGUAGES, f"{page.name}:{example.line}"
        if example.language == "yaml":
            assert isinstance(yaml.safe_load(example.code), dict)
        elif example.language == "console":
            run_commands(example.code, only_options=example.requires == "testbed")
        elif not example.requires or importlib.util.find_spec(example.requires):
            code = "\n" * example.line + example.code
            exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Files that a page links to exist."""
    for link in LINK.finditer(page.read_text()):
        target = link["target"]
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_pages_are_found_from_the_index() -> None:
    """Each page of docs/ is linked from its README."""
    linked = {link["target"] for link in LINK.finditer((ROOT / "docs" / "README.md").read_text())}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


def test_examples_are_told_apart(tmp_path: Path) -> None:
    """The test above sees what it should."""
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python requires=os\nx = 1\n```\n```yaml\na: 1\n```\n")
    assert examples(page) == [
        Example("python", "os", "x = 1\n", 3),
        Example("yaml", "", "a: 1\n", 6),
    ]
