"""How examples flow into training: a dataset describes it, a stream runs it.

Importing this imports nothing heavy; a name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spanwise.pipelines.input.dataset import Dataset
    from spanwise.pipelines.input.element import (
        ArraySpec,
        BatchSpec,
        DatasetSpec,
        ElementSpec,
        OptionalSpec,
        Ragged,
        RaggedSpec,
        Sparse,
        SparseSpec,
        Structure,
        Table,
        spec_of,
    )
    from spanwise.pipelines.input.images import decode_image
    from spanwise.pipelines.input.iterator import DatasetIterator
    from spanwise.pipelines.input.op import AUTOTUNE, Options
    from spanwise.pipelines.input.ops.shard import SHARD_HINT
    from spanwise.pipelines.input.registration import from_dataset_id, register_dataset
    from spanwise.pipelines.input.service.saves.save import save
    from spanwise.pipelines.input.snapshot.element_types import register_type
    from spanwise.pipelines.input.snapshot_loader import load
    from spanwise.pipelines.input.sources import (
        choose_from_datasets,
        col,
        from_arrow,
        from_arrow_files,
        from_csv,
        from_elements,
        from_generator,
        from_images,
        from_json_lines,
        from_parquet,
        from_random_access,
        from_tensor_slices,
        from_tensors,
        from_text,
        from_tfrecord,
        from_webdataset,
        list_files,
        range,  # noqa: A004  as it is called elsewhere
        sample_from_datasets,
        zip,  # noqa: A004
    )

_HOMES = {
    "AUTOTUNE": "op",
    "ArraySpec": "element",
    "BatchSpec": "element",
    "Dataset": "dataset",
    "DatasetIterator": "iterator",
    "DatasetSpec": "element",
    "ElementSpec": "element",
    "OptionalSpec": "element",
    "Options": "op",
    "Ragged": "element",
    "SHARD_HINT": "ops.shard",
    "RaggedSpec": "element",
    "Sparse": "element",
    "SparseSpec": "element",
    "Structure": "element",
    "Table": "element",
    "choose_from_datasets": "sources",
    "col": "sources",
    "from_arrow": "sources",
    "from_arrow_files": "sources",
    "from_csv": "sources",
    "from_dataset_id": "registration",
    "from_elements": "sources",
    "from_generator": "sources",
    "from_parquet": "sources",
    "from_tensor_slices": "sources",
    "from_tensors": "sources",
    "from_images": "sources",
    "from_json_lines": "sources",
    "from_random_access": "sources",
    "from_text": "sources",
    "from_tfrecord": "sources",
    "from_webdataset": "sources",
    "list_files": "sources",
    "decode_image": "images",
    "load": "snapshot_loader",
    "range": "sources",
    "register_dataset": "registration",
    "register_type": "snapshot.element_types",
    "sample_from_datasets": "sources",
    "save": "service.saves.save",
    "spec_of": "element",
    "zip": "sources",
}

__all__ = [
    "AUTOTUNE",
    "SHARD_HINT",
    "ArraySpec",
    "BatchSpec",
    "Dataset",
    "DatasetIterator",
    "DatasetSpec",
    "ElementSpec",
    "OptionalSpec",
    "Options",
    "Ragged",
    "RaggedSpec",
    "Sparse",
    "SparseSpec",
    "Structure",
    "Table",
    "choose_from_datasets",
    "col",
    "decode_image",
    "from_arrow",
    "from_arrow_files",
    "from_csv",
    "from_dataset_id",
    "from_elements",
    "from_generator",
    "from_images",
    "from_json_lines",
    "from_parquet",
    "from_random_access",
    "from_tensor_slices",
    "from_tensors",
    "from_text",
    "from_tfrecord",
    "from_webdataset",
    "list_files",
    "load",
    "range",
    "register_dataset",
    "register_type",
    "sample_from_datasets",
    "save",
    "spec_of",
    "zip",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
