"""LavinMQ in Python and Cython: an AMQP 0-9-1 message broker.

The broker is started by ``lavinmq.__main__``; this file only names the version, as a literal,
because pyproject.toml, the command line and the server properties all read it from here.
Nothing is imported, so that importing a part of the package costs that part alone.
"""

__version__ = "0.1.0"
