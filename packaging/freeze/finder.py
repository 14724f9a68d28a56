"""Makes imports work in the executable, also those of compiled modules and of files of packages."""

import sys
from _frozen_importlib import BuiltinImporter, FrozenImporter


class LinkedModules:
    """Finds compiled modules that are in a package, which the interpreter's own finder does not."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the spec of a module that is linked in, or None."""
        if path is None or name not in sys.builtin_module_names:
            return None
        return BuiltinImporter.find_spec(name)


def get_resource_reader(name):
    """Return what `importlib.resources` reads the files of a package from."""
    import assets

    return assets.reader(name)


def install():
    """Have all imports go this way from now on."""
    sys.meta_path.insert(0, LinkedModules)
    FrozenImporter.get_resource_reader = staticmethod(get_resource_reader)
