"""What the executable knows of how its interpreter was built: where time zones are.

Stands for the package `sysconfig` of the standard library, which reads that from a file that it
would not find. `zoneinfo` asks for nothing else.
"""

from __future__ import annotations

VARIABLES = {
    "TZPATH": "/usr/share/zoneinfo:/usr/lib/zoneinfo:/usr/share/lib/zoneinfo:/etc/zoneinfo"
}
"""As CPython's configure has them."""


def get_config_var(name: str) -> str | None:
    """Return a variable, or None for one that is not known here."""
    return VARIABLES.get(name)
