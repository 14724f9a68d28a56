"""Types of the compiled module `lavinmq._pcre`, made of cext/pcre.pyx."""

MAX_PATTERN: int
"""Bytes that a pattern may have."""
MATCH_LIMIT: int
"""What one search may try."""
HEAP_LIMIT_KIB: int
"""Memory that one search may take."""

class LimitReached(Exception):
    """A search would take longer than any may; whether there is a match is not known."""

class Expression:
    """A compiled pattern.

    Args: `text`, the pattern in UTF-8. Raises: ValueError, saying what is wrong and where.
    """

    def __init__(self, text: bytes) -> None: ...
    def search(self, subject: bytes) -> bool:
        """Whether it matches anywhere in a text of UTF-8.

        Raises: LimitReached; ValueError for what is no UTF-8; MemoryError.
        Cost: half a microsecond, and half a millisecond at most.
        """
