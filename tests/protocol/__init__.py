"""Bytes in, bytes out: what the broker answers on the wire."""
