"""Describe the files of this folder in datapackage.json. See README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from asgd_model.files import write_bytes

DATA = Path(__file__).parent
PACKAGE = "datapackage.json"

KINDS = (
    ("measurements/*.csv", "runs", "A row per run: throughput of all workers."),
    ("measurements/*.steps.csv.gz", "steps", "A row per step of each worker."),
    ("profiles/*/*.profile.json.gz", None, "Profile of a job on one worker (asgd_model.profile)."),
    ("calibrations/*.json", None, "What links and communication cost (asgd_model.testbed)."),
    ("platforms/*.yaml", None, "A cluster of the testbed (asgd_model.testbed.platform)."),
    ("campaigns/*.yaml", None, "What the testbed measured (asgd_model.testbed.campaign)."),
    ("raw/cpu-0.15-300mbit/measured.csv", "sample_runs", "A row per run as recorded."),
    ("raw/cpu-0.15-300mbit/steps.csv.gz", "sample_steps", "A row per step as recorded."),
    ("raw/*/*.frames.csv.gz", "frames", "HTTP/2 frames of a packet capture (asgd_model.capture)."),
    ("raw/bulk-0.15-300mbit/two_flows.csv", "two_flows", "Transfers of two bulk flows."),
    ("raw/**/*.pb.gz", None, "RunMetadata of a traced step (TensorFlow)."),
)
"""Files, their table's schema if they are one, and what they are."""


def resources(folder: Path) -> Iterator[dict[str, object]]:
    """Describe every file of every kind."""
    for pattern, schema, description in KINDS:
        for path in sorted(folder.glob(pattern)):
            relative = path.relative_to(folder).as_posix()
            name = relative.lower().replace("/", "-").replace("_", "-")
            described: dict[str, object] = {"name": name, "path": relative}
            described["description"] = description
            if schema is not None:
                described |= {"type": "table", "format": "csv", "encoding": "utf-8"}
                described["schema"] = f"schemas/{schema}.json"
                if path.suffix == ".gz":
                    described["compression"] = "gz"
            yield described


def describe(folder: Path) -> None:
    """Write a folder's description."""
    package = {
        "name": "asgd-model-data",
        "title": "Throughput of asynchronous SGD with parameter servers",
        "licenses": [{"name": "MIT"}],
        "resources": list(resources(folder)),
    }
    content = json.dumps(package, indent=2) + "\n"
    write_bytes(folder / PACKAGE, content.encode())


if __name__ == "__main__":
    describe(DATA)
