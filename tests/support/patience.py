"""How long tests wait for what is going to happen, before they give up.

The long form of the crash tests runs for an hour beside whatever else the machine does: what takes
a second there alone may take half a minute then, and that is no fault of the broker.
"""

import os

PATIENCE = 6.0 if os.environ.get("CRASH_TESTS_LONG") else 1.0
"""By what each deadline is multiplied."""
