"""Libraries that a test module imports when a test first uses them: what is imported, each later fork copies."""

from importlib import import_module


class Later:
    """A module by its name; its attributes are those of the module."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):  # pytest looks for some in all that a module has
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
