"""Modules that are imported when they are used, in place of imports that hardly ever matter."""


class Later:
    """A module of which nothing is needed to start. Args: name: without a dot."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        """Import it, unless that was done, and give what it has."""
        return getattr(__import__(self._name), attribute)
