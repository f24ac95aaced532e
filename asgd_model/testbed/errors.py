"""What ends a run on the testbed."""

from __future__ import annotations


class TestbedError(RuntimeError):
    """The machine cannot do what a run needs, or a run failed; the message says why."""

    __test__ = False  # pytest takes the name for a class of tests
