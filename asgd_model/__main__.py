"""``python -m asgd_model`` is the command ``asgd-model``."""

import sys

from asgd_model.cli import main

if __name__ == "__main__":
    sys.exit(main())
