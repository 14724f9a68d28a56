"""A broker that compacts all the time: a program for tests that watch it do so.

Takes the options that every test gives a broker.
"""

from __future__ import annotations

import sys

import lavinmq.server
from lavinmq.__main__ import main

INTERVAL_S = 0.02

if __name__ == "__main__":
    lavinmq.server.COMPACT_INTERVAL_S = INTERVAL_S
    sys.exit(main())
