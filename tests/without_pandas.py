"""A process in which pandas is not installed: pyarrow imports it for the first array that it converts, for 0.4 s."""

import sys


def refuse():
    """From now on pandas cannot be imported, unless it was before."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _WithoutPandas)


def allow():
    """Takes that back."""
    if _WithoutPandas in sys.meta_path:
        sys.meta_path.remove(_WithoutPandas)
        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].lib._pandas_api.__init__()  # or it would not look for pandas again


class _WithoutPandas:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not for this process", name=name)
