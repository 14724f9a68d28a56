"""Files of packages within the executable, for `importlib.resources`.

They are in the module `assets_data`, which collect.py makes: bytes by name, by package.
"""

import io
from importlib.resources.abc import Traversable, TraversableResources


class Node(Traversable):
    """A file, whose content is bytes, or a directory, whose content is a dict of these by name."""

    def __init__(self, name, content):
        self._name = name
        self._content = content

    @property
    def name(self):
        """Its name in the directory that it is in."""
        return self._name

    def is_dir(self):
        """Whether it is a directory."""
        return isinstance(self._content, dict)

    def is_file(self):
        """Whether it is a file."""
        return isinstance(self._content, bytes)

    def iterdir(self):
        """Give what is in a directory."""
        if not self.is_dir():
            raise NotADirectoryError(self._name)
        return (Node(name, content) for name, content in self._content.items())

    def joinpath(self, *descendants):
        """Return what is below; it need not be there."""
        node = self
        for part in "/".join(map(str, descendants)).split("/"):
            inside = node._content if node.is_dir() else {}
            node = Node(part, inside.get(part))
        return node

    def open(self, mode="r", *args, **kwargs):
        """Open a file for reading, as `io.open` does."""
        if not self.is_file():
            raise IsADirectoryError(self._name) if self.is_dir() else FileNotFoundError(self._name)
        stream = io.BytesIO(self._content)
        return stream if "b" in mode else io.TextIOWrapper(stream, *args, **kwargs)


class Reader(TraversableResources):
    """The files of one package."""

    def __init__(self, root):
        self._root = root

    def files(self):
        """Return the directory that they are in."""
        return self._root


def reader(package):
    """Return the reader of a package, which may have no files."""
    from assets_data import FILES

    return Reader(Node(package, FILES.get(package, {})))
