"""A small sweep whose runs are kept: ``python sweeping.py PROFILE FOLDER`` prints its table."""

from __future__ import annotations

import sys

from asgd_model.profile import load_profile
from asgd_model.sweep import sweep


def main(profile: str, folder: str) -> None:
    """Simulate some cluster sizes and seeds."""
    jobs = {"job": load_profile(profile)}
    table = sweep(jobs, range(1, 9), seeds=range(20), steps=10, folder=folder)
    sys.stdout.write(table.to_csv(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
