"""Parameters: named JSON values of a virtual host, by component, or of the whole broker.

Whatever has a meaning for somebody (shovels, federation) looks it up here; the others are kept. The
broker itself follows none of them, so it goes on without a file that is damaged. A change is listed
at once, and in force when it is on disk: what a shovel has moved nobody takes back.
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


class Parameters:
    """Parameters by component and name, which never change."""

    __slots__ = ("_by_key",)

    def __init__(self, parameters: Iterable[Parameter] = ()) -> None:
        self._by_key = {(each.component, each.name): each for each in parameters}

    @property
    def is_any(self) -> bool:
        """Whether there is any."""
        return bool(self._by_key)

    def all(self, component: str | None = None) -> list[Parameter]:
        """All parameters in the order of their creation, or those of one component."""
        everything = self._by_key.values()
        return [each for each in everything if component is None or each.component == component]

    def get(self, component: str | None, name: str) -> Parameter | None:
        """One parameter."""
        return self._by_key.get((component, name))


class ParameterStore:
    """All parameters of one file. Call `load` once.

    Args: path: `parameters.json`; is_global: whether it is that of the whole broker; disk: see
        `files/saving.py`.
    """

    def __init__(self, path: Path, is_global: bool = False, disk: Disk | None = None) -> None:
        self._file = JsonFile(path, disk)
        self._is_global = is_global
        self._listed = Parameters()
        self.in_force = Parameters()
        """Those on disk: whoever does what parameters say goes by these."""
        self.on_change: Callable[[], object] | None = None
        """Is told when others are in force."""

    def load(self) -> None:
        """Read the file; what is damaged in it is logged and left out, see `files/json_file.py`."""
        self._listed = self.in_force = Parameters(self._file.load_entries(self.parse))

    def release(self) -> None:
        """Write nothing more. In a thread."""
        self._file.release()

    def all(self, component: str | None = None) -> list[Parameter]:
        """All parameters in the order of their creation, or those of one component; those on their
        way to the disk, too."""
        return self._listed.all(component)

    def get(self, component: str | None, name: str) -> Parameter | None:
        """One of these."""
        return self._listed.get(component, name)

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
        self._save(Parameters((*self.all(), *parameters)))

    def delete(self, component: str | None, name: str) -> bool:
        """Remove a parameter. Returns: whether it was there. Raises: DefinitionsError."""
        gone = self.get(component, name)
        if gone is None:
            return False
        self._save(Parameters(each for each in self.all() if each is not gone))
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

    def _save(self, parameters: Parameters) -> None:
        self._file.save_entries(
            lambda: (each.to_json() for each in parameters.all()),
            partial(setattr, self, "_listed", self._listed),
            partial(self._enforce, parameters),
        )
        self._listed = parameters

    def _enforce(self, parameters: Parameters) -> None:
        self.in_force = parameters
        if self.on_change is not None:
            self.on_change()
