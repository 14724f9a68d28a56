"""What only tests and tools use, compiled from cext/trial.pyx: `make trial`.

All of `lavinmq._core` is in it once more, as classes of their own, with assertions.
"""

from typing import Final

from lavinmq._core import AMQP as AMQP
from lavinmq._core import DIRECT as DIRECT
from lavinmq._core import OVERFLOW as OVERFLOW
from lavinmq._core import STATE_OPEN as STATE_OPEN
from lavinmq._core import Consumer as Consumer
from lavinmq._core import Exchange as Exchange
from lavinmq._core import Link as Link
from lavinmq._core import Loop as Loop
from lavinmq._core import Protocol as Protocol
from lavinmq._core import Queue as Queue
from lavinmq._core import Vhost as Vhost

LINES: Final[Protocol]
"""A protocol of text, for links of this module; see cext/trial/lines.pyx."""
