"""Broker-level and micro benchmarks; not part of the installed product."""
