"""Parameters: named JSON values of a virtual host, by component, or of the whole broker.

Whatever has a meaning for somebody (shovels, federation) looks it up here; the others are kept. The
broker itself follows none of them, so it goes on without a file that is damaged.
Source: docs/policies.md, docs/formats.md.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lavinmq.files.json_file import JsonFile
from lavinmq.files.saving import Disk


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `component` is None for those of the whole broker."""

    component: str | None
    name: str
    value: Any

    def to_json(self) -> dict[str, Any]:
        """The parameter as it is stored."""
        head = {} if self.component is None else {"component": self.component}
        return {**head, "name": self.name, "value": self.value}


class ParameterStore:
    """All parameters of one file. Call `load` once.

    Args: path: `parameters.json`; is_global: whether it is that of the whole broker; disk: see
        `files/saving.py`.
    """

    def __init__(self, path: Path, is_global: bool = False, disk: Disk | None = None) -> None:
        self._file = JsonFile(path, disk)
        self._is_global = is_global
        self._parameters: dict[tuple[str | None, str], Parameter] = {}
        self.on_change: Callable[[], object] | None = None
        """Is told of each change, also of one that is taken back."""

    def load(self) -> None:
        """Read the file; what is damaged in it is logged and left out, see `files/json_file.py`."""
        self._parameters = _by_key(self._file.load_entries(self.parse))

    def release(self) -> None:
        """Write nothing more. In a thread."""
        self._file.release()

    @property
    def is_any(self) -> bool:
        """Whether there is any."""
        return bool(self._parameters)

    def all(self, component: str | None = None) -> list[Parameter]:
        """All parameters in the order of their creation, or those of one component."""
        everything = self._parameters.values()
        return [each for each in everything if component is None or each.component == component]

    def get(self, component: str | None, name: str) -> Parameter | None:
        """One parameter."""
        return self._parameters.get((component, name))

    def put(self, *parameters: Parameter) -> None:
        """Add parameters, or replace those of the same component and name; saves once.

        Raises: DefinitionsError when the file cannot be saved; nothing has changed then, or it is
            taken back when that turns out later. ValueError
            for a component where there are none, or none where there are.
        """
        for parameter in parameters:
            if (parameter.component is None) is not self._is_global:
                which = "without" if self._is_global else "with"
                raise ValueError(f"Parameter {parameter.name!r} has to be one {which} a component")
        self._save(self._parameters | _by_key(parameters))

    def delete(self, component: str | None, name: str) -> bool:
        """Remove a parameter. Returns: whether it was there. Raises: DefinitionsError."""
        if (component, name) not in self._parameters:
            return False
        self._save({k: each for k, each in self._parameters.items() if k != (component, name)})
        return True

    def parse(self, entry: Any) -> Parameter:
        """A parameter as it is stored. Raises: ValueError when it cannot be one."""
        if not isinstance(entry, dict):
            raise ValueError("not a parameter")
        component = None if self._is_global else entry.get("component")
        name = entry.get("name")
        is_right = self._is_global or isinstance(component, str)
        if not isinstance(name, str) or not is_right or "value" not in entry:
            raise ValueError("a parameter has a name, a value and in a vhost a component")
        return Parameter(component, name, entry["value"])

    def _save(self, parameters: dict[tuple[str | None, str], Parameter]) -> None:
        self._file.save_entries(
            lambda: (each.to_json() for each in parameters.values()),
            partial(self._become, self._parameters),
        )
        self._become(parameters)

    def _become(self, parameters: dict[tuple[str | None, str], Parameter]) -> None:
        self._parameters = parameters
        if self.on_change is not None:
            self.on_change()


def _by_key(parameters: Iterable[Parameter]) -> dict[tuple[str | None, str], Parameter]:
    return {(each.component, each.name): each for each in parameters}
