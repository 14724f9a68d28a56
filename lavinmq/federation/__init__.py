"""Federation: messages of other brokers come to exchanges and queues here.

`upstreams.py` reads the parameters; `hops.py` says which messages and bindings go on. A link is one
upstream of one exchange (`exchange_link.py`) or queue (`queue_link.py`); `links.py` are all of a
broker. Links run and wait as shovels do (`shovel/runner.py`). Source: docs/federation.md.
"""
