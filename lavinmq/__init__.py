"""LavinMQ in Python and Cython: an AMQP 0-9-1 message broker.

The command is ``lavinmq.__main__``; ``lavinmq.run()`` starts a broker inside another program
(docs/embedding.md). This file names the version, as a literal, because pyproject.toml, the command
line and the server properties all read it from here. Nothing is imported before it is asked for,
so that importing a part of the package costs that part alone.
"""

TYPE_CHECKING = False  # as in ``typing``, whose import would be most of the cost of ours
if TYPE_CHECKING:
    from lavinmq.config.values import ConfigError
    from lavinmq.embedded import Broker, BrokerError, run
    from lavinmq.errors import DefinitionsError
    from lavinmq.files.datadir import DataDirError

__version__ = "0.2.1"
__all__ = [
    "Broker",
    "BrokerError",
    "ConfigError",
    "DataDirError",
    "DefinitionsError",
    "__version__",
    "run",
]

_HOMES = {
    "Broker": "embedded",
    "BrokerError": "embedded",
    "ConfigError": "config.values",
    "DataDirError": "files.datadir",
    "DefinitionsError": "errors",
    "run": "embedded",
}


if not TYPE_CHECKING:  # with it in sight, a type checker takes any name for one of ours

    def __getattr__(name: str) -> object:
        """Import what was asked for, once."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Name what can be asked for, imported or not."""
    return sorted({*globals(), *__all__})
