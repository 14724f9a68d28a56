"""Where brokers of tests have their control sockets.

A broker that is killed leaves its socket, and in a data directory of a test its path may be longer
than a socket's can be (108 bytes). So those of a test process are in one directory with a short
name, which goes when that process ends.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile


def control_path(port: int) -> str:
    """The control socket of the broker with this port for AMQP."""
    return f"{_directory()}/{port}.sock"


@functools.cache
def _directory() -> str:
    path = tempfile.mkdtemp(prefix="lavinmqctl-test-", dir="/tmp")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
