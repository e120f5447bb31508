"""Ways of a generated graph into libraries of tensors: what they are given is what the dataset gives, or it is refused.

They are ways of the law where `make test-torch` has installed these libraries.
"""

import dataclasses
import importlib.util
import os

import numpy as np
from hypothesis import strategies as st

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import convert_arrays
from spanwise.pipelines.input.element import Ragged, each_leaf, parts_of
from tests.contract.generated_graphs import same

NARROW = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32, "complex128": np.complex64}


def arrays_of(graph):
    """The elements as arrays in their structures; that these are right, other ways say."""
    with graph.dataset.iterator(epoch=0) as elements:
        return [convert_arrays(element) for element in elements]


def leaves_of(value):
    """Each array, and each row of a ragged one."""
    if isinstance(value, Ragged):
        return [leaf for row in value for leaf in leaves_of(row)]
    parts = parts_of(value)
    return [value] if parts is None else [leaf for part in parts[1] for leaf in leaves_of(part)]


def array_of(leaf):
    """In the machine's order of bytes; of objects where lists have different lengths."""
    try:
        array = np.asarray(leaf)
    except ValueError:
        return np.asarray(None)
    return array.astype(array.dtype.newbyteorder("=")) if array.dtype.kind in "biufc" else array


def is_number(leaf):
    return array_of(leaf).dtype.kind in "biufc"


def is_masked(leaf):
    return isinstance(leaf, np.ma.MaskedArray) and np.ma.getmaskarray(leaf).any()


def as_given(convert, element):
    """The element with its arrays of numbers converted, and lists of rows where one is ragged."""

    def leaf_of(leaf):
        if isinstance(leaf, Ragged):
            return [leaf_of(row) for row in leaf]
        return convert(array_of(leaf)) if is_number(leaf) else leaf

    return each_leaf(leaf_of, element)


def as_arrays(element):
    """An element of tensors."""

    def leaf_of(leaf):
        if type(leaf) is list and leaf and all(hasattr(row, "__array__") or type(row) is list for row in leaf):
            return [leaf_of(row) for row in leaf]
        return np.asarray(leaf) if hasattr(leaf, "__array__") and is_number(leaf) else leaf

    return each_leaf(leaf_of, element)


def check(found, wanted):
    assert len(found) == len(wanted), (found, wanted)
    for each, expected in zip(found, wanted, strict=True):
        assert same(each, expected), (each, expected)


def taken(elements, *, refused):
    """What comes of them; None if they are refused, as they have to be."""
    try:
        found = [as_arrays(element) for element in elements]
    except DatasetError:
        if not refused:
            raise
        return None
    assert not refused, found
    return found


def to_torch(graph, _):
    wanted = arrays_of(graph)
    refused = any(is_masked(leaf) for element in wanted for leaf in leaves_of(element))
    found = taken(graph.dataset.to_torch(), refused=refused)
    if found is not None:
        check(found, [as_given(lambda array: array, each) for each in wanted])


def to_jax(graph, draw):
    """With numbers of 64 bits; and with the 32 of JAX's own, where numbers that do not fit are refused."""
    import jax

    is_wide = draw(st.booleans())
    with jax.enable_x64(is_wide):
        wanted = arrays_of(graph)
        refused = any(
            is_masked(leaf) or (is_number(leaf) and not is_wide and is_cut(array_of(leaf)))
            for element in wanted
            for leaf in leaves_of(element)
        )
        found = taken(graph.dataset.to_jax(prefetch=draw(st.integers(0, 2))).iterator(epoch=0), refused=refused)
    if found is not None:
        check(found, [as_given(lambda array: array if is_wide else narrowed(array), each) for each in wanted])


def narrowed(array):
    with np.errstate(over="ignore"):
        return array.astype(NARROW.get(array.dtype.name, array.dtype))


def is_cut(array):
    """Whether a whole number is another one in 32 bits, or a finite one infinite."""
    if array.dtype.kind in "iu":
        return narrowed(array).tolist() != array.tolist()
    return array.dtype.kind in "fc" and bool((np.isfinite(array) & ~np.isfinite(narrowed(array))).any())


def to_tf(graph, _):
    """What has no tensors, or other types than the first element, may be refused; all else has the same values."""
    import tensorflow as tf

    wanted = arrays_of(graph)
    try:
        found = list(graph.dataset.to_tf())
    except (DatasetError, tf.errors.OpError) as error:
        if "to_tf: " not in str(error) or is_carried(wanted):
            raise
        return
    assert len(found) == len(wanted), (found, wanted)
    for each, expected in zip(found, wanted, strict=True):
        assert equal(each, expected), (each, expected)


def is_carried(elements):
    """Whether TensorFlow has tensors for them, of the same types for all."""
    forms = {tf_form(element) for element in elements}
    return len(forms) == 1 and () not in forms


def tf_form(value):
    """The structure of an element and the types and axes of its arrays; empty if TensorFlow has no tensors for one."""
    parts = parts_of(value)
    if parts is not None:
        forms = tuple(map(tf_form, parts[1]))
        return (type(value), parts[0], *forms) if all(forms) else ()
    if isinstance(value, Ragged):
        return ("rows", tf_form(value.values))
    array = array_of(value)
    if is_masked(value) or (array.dtype.kind not in "biufcSU" and not has_texts(array)):
        return ()
    return ("text" if array.dtype.kind in "SUO" else array.dtype.name, array.ndim)


def has_texts(array):
    return array.dtype.kind == "O" and array.size > 0 and all(isinstance(item, str | bytes) for item in array.flat)


def equal(found, wanted):
    """Whether an element of TensorFlow's has the values of the expected one."""
    if dataclasses.is_dataclass(wanted) and not isinstance(wanted, Ragged):
        wanted = vars(wanted)
    parts = parts_of(wanted)
    if parts is not None:
        names, inner = parts_of(found)
        if isinstance(wanted, dict):
            inner = [found[name] for name in parts[0]]
        return set(names) == set(parts[0]) and all(map(equal, inner, parts[1]))
    if isinstance(wanted, Ragged):
        return found.nrows() == len(wanted) and all(equal(found[at], row) for at, row in enumerate(wanted))
    found = found.numpy()
    texts = [wanted] if isinstance(wanted, str | bytes) else array_of(wanted).ravel().tolist()
    values = [text.encode() if isinstance(text, str) else text for text in texts]
    return np.shape(found) == np.shape(wanted) and all(
        one == other or (one != one and other != other)  # noqa: PLR0124  not a number
        for one, other in zip([found] if isinstance(found, bytes) else np.ravel(found).tolist(), values, strict=True)
    )


LIBRARIES = {"torch": to_torch, "jax": to_jax, "tensorflow": to_tf}
WAYS = [
    way
    for library, way in LIBRARIES.items()
    if os.environ.get("SPANWISE_TEST_FRAMEWORKS") and importlib.util.find_spec(library)
]
