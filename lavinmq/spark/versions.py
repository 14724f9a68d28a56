"""Which PySpark is needed: read limits for sources in Python came with 4.2."""

from __future__ import annotations

MINIMUM = (4, 2)


def require_pyspark() -> None:
    """Raise ImportError, in one line, when PySpark is missing or too old."""
    try:
        from pyspark import __version__ as found
    except ImportError:
        raise ImportError('PySpark is not installed; pip install "lavinmq[spark]"') from None
    if version_of(found) < MINIMUM:
        needed = ".".join(map(str, MINIMUM))
        raise ImportError(f"the format lavinmq needs PySpark {needed} or later; this is {found}")


def version_of(text: str) -> tuple[int, ...]:
    """Return major and minor version as numbers."""
    return tuple(int(part) for part in text.split(".")[:2])
