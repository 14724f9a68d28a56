"""What tells a stream from others that had or will have its name: an empty file in its directory.

Readers keep offsets outside the broker; they have to notice that a stream was deleted and made
anew. The identity stands in the file's name, `created.<identity>`, because names are kept in order
with other changes of a directory, and contents are not. It goes with the directory, and nobody else
looks at it. Called by `queue_files.py`; the message path finds it when it loads the stream.
Source: docs/formats.md, decision 0018.
"""

import os
import secrets
import time
from typing import Final

from lavinmq.files.changes import Changes

_PREFIX: Final = "created."


def make(directory: str, changes: Changes) -> str:
    """Give the stream of a directory an identity: Unix milliseconds and 64 random bits.

    Raises: OSError.
    """
    identity = f"{time.time_ns() // 1_000_000}-{secrets.token_hex(8)}"
    path = f"{directory}/{_PREFIX}{identity}"
    changes.touch(path, os.O_EXCL)
    return identity
