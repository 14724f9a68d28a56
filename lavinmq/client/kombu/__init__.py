"""A transport of kombu on this client, so that Celery runs on it: URLs `lavinmq://`, `lavinmqs://`.

Importing this package makes the two schemes known. Whoever uses kombu catches py-amqp's errors and
calls its names of methods, so both are py-amqp's here. What differs: a publish waits for the
broker's confirm unless the transport option `confirm_publish` is false, heartbeats need nobody's
help, and TLS verifies the broker. A lost connection is kombu's to make again: it knows which
consumers and queues belong to it. Needs kombu. Source: docs/client-adapters.md.
"""

from kombu.transport import TRANSPORT_ALIASES

from lavinmq.client.kombu.transport import SSLTransport, Transport

__all__ = ["SSLTransport", "Transport"]

TRANSPORT_ALIASES.setdefault("lavinmq", f"{__name__}:Transport")
TRANSPORT_ALIASES.setdefault("lavinmqs", f"{__name__}:SSLTransport")
