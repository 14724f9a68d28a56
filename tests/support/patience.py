"""How long tests wait for what is going to happen, before they give up.

The long form of the crash tests runs for an hour beside whatever else the machine does: what takes
a second there alone may take half a minute then, and that is no fault of the broker. So it is with
an emulated processor, for which `make test-binary ARCH=arm64` sets TESTS_PATIENCE.
"""

import os

LONG = 6 if os.environ.get("CRASH_TESTS_LONG") else 1
PATIENCE = float(os.environ.get("TESTS_PATIENCE") or LONG)
"""By what each deadline is multiplied."""
