"""The records of an elastic worker's loop, and its input: one record after the other, and vectorised."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Batch: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int32]]  # features and labels

BATCH: Final = 128
PIXELS: Final = 32 * 32 * 3
CLASSES: Final = 10
BLOCKS: Final = 8  #: batches in the file, which is read again and again
MEAN: Final = (0.4914, 0.4822, 0.4465)
STD: Final = (0.2470, 0.2435, 0.2616)


def write_records(path: Path, tail_bytes: int) -> None:
    """Records as CIFAR-10 has them, a label and 3 x 32 x 32 pixels, with a tail and a checksum behind each."""
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(BLOCKS * BATCH):
            body = bytes([int(random.integers(CLASSES))]) + random.bytes(PIXELS) + random.bytes(tail_bytes)
            file.write(body + struct.pack("<I", zlib.crc32(body)))


def read_records(path: Path, record_bytes: int) -> Iterator[bytes]:
    """Yields each record, checked and without its tail; starts again after the last."""
    with path.open("rb") as file:
        while True:
            while record := file.read(record_bytes):
                body = memoryview(record)[:-4]
                if zlib.crc32(body) != struct.unpack_from("<I", record, record_bytes - 4)[0]:
                    raise ValueError(f"{path} is damaged")
                yield record[: 1 + PIXELS]
            file.seek(0)


def take_batch(records: Iterator[bytes]) -> list[bytes]:
    """The document's `get_batch`."""
    return [next(records) for _ in range(BATCH)]


def record_batches(path: Path, record_bytes: int) -> Iterator[list[bytes]]:
    records = read_records(path, record_bytes)
    while True:
        yield take_batch(records)


def input_fn(records: list[bytes]) -> Batch:
    """The document's function of the same name: decodes and normalises one record after the other."""
    mean, std = np.asarray(MEAN, np.float32), np.asarray(STD, np.float32)
    images, labels = [], []
    for record in records:
        label = np.int64(record[0])
        pixels = np.frombuffer(record, np.uint8, PIXELS, 1).reshape(3, 32, 32).transpose(1, 2, 0)
        image = pixels.astype(np.float32)
        image /= np.float32(255)
        image = (image - mean) / std
        images.append(image)
        labels.append(label.astype(np.int32))
    features: NDArray[np.float32] = np.reshape(np.concatenate(images, axis=0), (len(images), PIXELS))
    return features, np.array(labels)


def read_blocks(path: Path, record_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """Yields batches of records as rows of bytes, checked and without their tails; mapped rather than read."""
    rows = np.memmap(path, np.uint8, mode="r").reshape(-1, record_bytes)
    sums = [zlib.crc32(rows[at : at + BATCH].data) for at in range(0, len(rows), BATCH)]
    while True:
        for at, sum_ in zip(range(0, len(rows), BATCH), sums, strict=True):
            block = rows[at : at + BATCH]
            if zlib.crc32(block.data) != sum_:
                raise ValueError(f"{path} is damaged")
            yield block[:, : 1 + PIXELS]


def preprocess(block: NDArray[np.uint8]) -> Batch:
    """What `input_fn` does, for all records of a batch at once."""
    pixels = block[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    scale = (1 / (255 * np.asarray(STD, np.float64))).astype(np.float32)
    features = pixels * scale
    features -= (np.asarray(MEAN, np.float64) / STD).astype(np.float32)
    return features.reshape(-1, PIXELS), block[:, 0].astype(np.int32)
