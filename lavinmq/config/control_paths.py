"""Where lavinmqctl looks for the control socket of a broker, when nobody says where."""

from typing import Final

CONTROL_PATHS: Final = ("/run/lavinmq/lavinmqctl.sock", "/tmp/lavinmqctl.sock")
"""Where the configuration of packages has it; then the default of the setting."""
