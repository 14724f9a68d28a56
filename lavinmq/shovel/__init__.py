"""Shovels: parameters of a virtual host that move messages from one broker to another.

`values.py` reads a parameter, `places.py` its URIs; `inside.py` connects to this broker; `moving.py`
is one run; `shovel.py` is what an operator sees; `shovels.py` all of a broker. Source: docs/shovels.md.
"""
