"""Coverage-guided fuzzing of one reader: ``python fuzz.py READER [libFuzzer options]``.

Inputs that reach new code go to ``build/fuzz/READER``, one that ends in anything but an
`InputError` to ``build/fuzz/READER-crash-...``. Starts from ``corpus/READER``. Without a reader,
lists them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["asgd_model", "yaml", "graphlib", "json"]):
    from readers import CORPUS, READERS, project, read

BUILD = Path("build") / "fuzz"
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-max_len=65536")
"""Seconds and memory that reading one input may take, and its bytes."""


def main() -> None:
    """Fuzz the reader that the command line names."""
    if len(sys.argv) < 2:
        print(*READERS)
        return
    reader = sys.argv[1]
    found = BUILD / reader
    found.mkdir(parents=True, exist_ok=True)
    options = [f"-artifact_prefix={BUILD / reader}-", *LIMITS]
    words = CORPUS / f"{reader}.dict"
    if words.exists():
        options.append(f"-dict={words}")
    files = BUILD / f"{reader}-project"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    project(files)

    def one(content: bytes) -> None:
        read(reader, files, content)

    atheris.Setup([sys.argv[0], *options, *sys.argv[2:], str(found), str(CORPUS / reader)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
