"""A broker that takes hosts for nodes of its cluster, without a cluster.

Started as a program it is a broker, with the arguments of one behind these hosts:
`python -m tests.support.peers 127.0.0.1,::1 ...`.
"""

from __future__ import annotations

import sys

from lavinmq import server
from lavinmq.__main__ import main


def take_for_peers(hosts: set[str]) -> None:
    """Have each server of this process know them."""
    made = server.Server.__init__

    def make(self: server.Server, *args: object, **others: object) -> None:
        made(self, *args, **others)  # type: ignore[arg-type]
        self.peers |= hosts

    server.Server.__init__ = make  # type: ignore[method-assign]


if __name__ == "__main__":
    take_for_peers(set(sys.argv.pop(1).split(",")))
    sys.exit(main())
