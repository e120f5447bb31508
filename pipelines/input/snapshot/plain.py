"""Plain data as JSON text, bytes included: states of streams, and the metadata of chunks."""

from __future__ import annotations

import base64
import json
from typing import Any


def plain_json(value: object) -> str:
    """Raises:
    TypeError: something in it is not plain data.
    """  # noqa: D205
    return json.dumps(value, default=_bytes)


def read_plain_json(text: str | bytes) -> Any:
    return json.loads(text, object_hook=_from_bytes)


def _bytes(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"__bytes__": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__qualname__} is not plain data")


def _from_bytes(value: dict[str, Any]) -> object:
    return base64.b64decode(value["__bytes__"]) if value.keys() == {"__bytes__"} else value
