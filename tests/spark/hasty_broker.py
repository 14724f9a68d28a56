"""A broker that does not wait long for its disk before it says how far a stream is there: a program
for tests whose disk never gets there.

Takes the options that every test gives a broker.
"""

from __future__ import annotations

import sys

from lavinmq.__main__ import main
from lavinmq.http import synced

PATIENCE_S = 0.5

if __name__ == "__main__":
    synced.PATIENCE_S = PATIENCE_S  # type: ignore[misc]
    sys.exit(main())
