"""Images: encoded files as arrays, by Pillow; and what the files in a WebDataset sample hold, by their endings."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spanwise.orchestrator.errors import DatasetError, UnreadableInput
from spanwise.pipelines.input.file_state import FileStates
from spanwise.pipelines.input.files import IMAGE_ENDINGS, locate

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}


def decode_image(data: bytes, *, channels: int = 3, size: tuple[int, int] | None = None) -> NDArray[Any]:
    """An encoded image as an array of bytes: height, width, channels; `size` is the height and width to resize it to.

    The orientation that a camera stored is applied. Of an animation, the first frame.

    Raises:
        DatasetError: Pillow is not installed, or the arguments are wrong.
        UnreadableInput: it is not an image, is damaged, or has more pixels than Pillow allows.
    """
    import numpy as np

    if channels not in _MODES:
        raise DatasetError(f"decode_image(channels={channels!r}): expected 1 (grey), 3 (RGB) or 4 (RGBA).")
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise DatasetError("decode_image: Pillow is not installed: pip install 'spanwise[images]'") from error
    try:
        with Image.open(io.BytesIO(data)) as file:
            image = ImageOps.exif_transpose(file).convert(_MODES[channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableInput(f"decode_image: {error}.") from error
    if size is not None:
        height, width = size
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[:, :, np.newaxis] if channels == 1 else pixels


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """Reads a file of a folder as a dict of its image, its label and its path."""

    channels: int
    size: tuple[int, int] | None
    labels: tuple[str, ...] | None  #: whose numbers are the labels; None for the names of the folders themselves

    def __call__(self, path: str) -> dict[str, Any]:
        states = FileStates()
        states.begin(path)
        system, name = locate(path)
        with system.open_input_stream(name, compression=None) as file:
            data = file.read()
        states.check(path)
        try:
            image = decode_image(data, channels=self.channels, size=self.size)
        except UnreadableInput as error:
            raise UnreadableInput(f"{path}: {error}") from error
        return {"image": image, "label": self._label(path), "path": path}

    def _label(self, path: str) -> str | int:
        folder = path.rpartition("/")[0].rpartition("/")[2]
        if self.labels is None:
            return folder
        if folder not in self.labels:
            raise DatasetError(f"{path}: lies in the folder {folder!r}, which is not in labels={list(self.labels)}.")
        return self.labels.index(folder)


@dataclass(frozen=True, kw_only=True)
class DecodeSample:
    """The content of the files of a sample: texts, whole numbers, JSON, arrays and images; of others, the bytes."""

    channels: int = 3
    size: tuple[int, int] | None = None

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {name: value if name == "__key__" else self._decode(sample, name) for name, value in sample.items()}

    def _decode(self, sample: dict[str, Any], name: str) -> Any:
        ending = name.rpartition(".")[2]
        decode = _DECODERS.get(ending)
        try:
            if ending in IMAGE_ENDINGS:
                return decode_image(sample[name], channels=self.channels, size=self.size)
            return sample[name] if decode is None else decode(sample[name])
        except ValueError as error:
            raise UnreadableInput(
                f"sample {sample['__key__']}: the file .{name} is not what it is called: {error}."
            ) from error


def _load_array(data: bytes) -> NDArray[Any]:
    import numpy as np

    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)  # a pickle could run code
    return array


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(("cls", "cls2", "class", "count", "id", "index", "inx"), int),
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _load_array,
}
