"""`python -m lavinmq.pipeline`, and the file for `spark-submit`: runs the command line."""

import sys
from pathlib import Path

if not __package__ and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    # Started as a file: its neighbours are not top-level modules.
    del sys.path[0]

from lavinmq.pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
