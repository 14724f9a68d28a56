"""Checksums of what is stored: kept beside the files, looked at when they are read, and what to do
about damage.

`sums.py` is one file; `shelves.py` keeps the sums of all; `touches.py` hears which changes were the
broker's own; `life.py` knows who had the files before; `scrub.py` goes over all of them, and tells
`damage.py`; `keeper.py` does that in a thread, for who runs a broker or a node. `readers.py` has
what brokers read compared, and `guard.py` looks at what is sent elsewhere; `repair.py` and
`segment.py` are for a broker that has no peers.
Source: docs/integrity.md.
"""
