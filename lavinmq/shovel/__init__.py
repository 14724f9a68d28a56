"""Shovels: parameters of a virtual host that move messages, to another broker or to HTTP.

`values.py`, `places.py`, `hook.py` and `checks.py` read a parameter. `source.py` is where a run
takes messages from, `connecting.py` its clients, `inside.py` a connection to this broker. A run
goes to another queue of this broker (`carrying.py`), to AMQP (`moving.py`, by `passing.py`) or to
HTTP (`posting.py`, with `requests.py`, `http.py` and `addresses.py`). `runner.py` makes runs anew,
`shovel.py` is one at work, `shovels.py` are all of a broker. Source: docs/shovels.md.
"""
