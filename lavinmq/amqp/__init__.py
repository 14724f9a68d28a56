"""The AMQP 0-9-1 side of the broker: sessions and rare methods. Never imports another protocol."""
