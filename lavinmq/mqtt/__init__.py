"""The MQTT side of the broker: sessions, subscriptions, wills. Never imports another protocol."""
