"""The node's id: `.clustering_id`, which is LavinMQ's file, a number in base 36.

Source: docs/clustering.md.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from lavinmq.files.changes import Changes
from lavinmq.files.datadir import DataDirError
from lavinmq.files.whole import read_regular, write_atomic

ID_FILE: Final = ".clustering_id"
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
MAX_ID: Final = 2**31


def base36(number: int) -> str:
    """A number above 0 as LavinMQ writes it."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    return digits


def node_id(root: str) -> str:
    """The node's id, made by its first start. Raises: OSError, DataDirError."""
    path = os.path.join(root, ID_FILE)
    try:
        text = read_regular(path)[:64].decode("ascii", "replace").strip()
    except FileNotFoundError:
        text = base36(secrets.randbelow(MAX_ID - 1) + 1)
        write_atomic(path, text.encode(), Changes())
    if not text or set(text) - set(DIGITS) or int(text, 36) >= MAX_ID:
        raise DataDirError(
            f"{path!r} says {text[:20]!r}, which is no id of a node", is_lasting=True
        )
    return text
