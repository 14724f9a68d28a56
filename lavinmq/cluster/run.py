"""Runs a node of a cluster as a process of its own. Source: docs/clustering.md."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from lavinmq.cluster.node import Node
from lavinmq.files.datadir import DataDir, DataDirError
from lavinmq.integrity.keeper import Integrity
from lavinmq.process import log
from lavinmq.process.systemd import Service
from lavinmq.server import follow_signals, new_events

if TYPE_CHECKING:
    from lavinmq.config.values import Config

_log = log.get("lmq.cluster")


def run(config: Config) -> int:
    """Run a node until a signal tells it to stop, or it leads no more. Returns: the exit code."""
    events = new_events()
    asyncio.set_event_loop(events)
    try:
        with DataDir(
            config.data_dir, lock=config.data_dir_lock, access=config.data_dir_access
        ) as data_dir:
            integrity = Integrity.of(config, data_dir, lazy=False)
            node = Node(
                config, events, Service(os.environ), is_clean=data_dir.is_clean,
                integrity=integrity,
            )  # fmt: skip
            try:
                follow_signals(node, events)
                node.start()
                events.run_forever()
            finally:
                events.run_until_complete(node.release())
                if node.server is not None:
                    node.server.release()
                if integrity is not None:
                    integrity.close(is_orderly=node.is_stopped)
            if node.is_stopped:
                data_dir.stopped()
            node.tell_lost()
            return node.exit_code or int(bool(node.server and node.server.failure))
    except DataDirError as error:
        _log.error("%s", error)
        return error.exit_code
    except (ValueError, OSError) as error:
        _log.error("Cannot start: %s", error)
    return 1
