"""How examples flow into training: a dataset describes it, a stream runs it.

Importing this imports nothing heavy; a name is loaded when it is first used.
"""

from importlib import import_module

_HOMES = {
    "AUTOTUNE": "op",
    "ArraySpec": "element",
    "Batch": "element",
    "Dataset": "dataset",
    "DatasetIterator": "iterator",
    "DatasetSpec": "element",
    "ElementSpec": "element",
    "OptionalSpec": "element",
    "Options": "op",
    "Ragged": "element",
    "RaggedSpec": "element",
    "Sparse": "element",
    "SparseSpec": "element",
    "Structure": "element",
    "Table": "element",
    "col": "sources",
    "from_arrow": "sources",
    "from_arrow_files": "sources",
    "from_csv": "sources",
    "from_elements": "sources",
    "from_generator": "sources",
    "from_parquet": "sources",
    "from_tensor_slices": "sources",
    "from_tensors": "sources",
    "range": "sources",
    "sample_from_datasets": "sources",
    "spec_of": "element",
    "zip": "sources",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
