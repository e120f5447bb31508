"""Text, JSON lines, TFRecord, tar shards, images and what has a length: their elements, and what is wrong with them."""

import gzip
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from spanwise.orchestrator.errors import DatasetError, FunctionFailed, UnreadableInput
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.graph.fingerprint import of_graph
from spanwise.pipelines.input.ops.random_access import permuted
from spanwise.pipelines.input.readers.descriptor import Dialect
from tests.components.tf_example import framed, parsed, serialized
from tests.pipelines.input.elements import write_tar


def test_lines_come_without_their_newlines(tmp_path):
    """Of either convention, also the last one without any; a mark at the beginning is no text."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo \nthree")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n"))
    (tmp_path / "c.txt").write_bytes(b"")

    assert list(inputs.from_text(tmp_path / "*")) == ["one", "", "two ", "three", "four"]


def test_lines_of_another_encoding(tmp_path):
    """It has to be named; else the byte is reported that is none of UTF-8."""
    (tmp_path / "a.txt").write_bytes("Köln\nBern\n".encode("latin-1"))

    assert list(inputs.from_text(tmp_path / "a.txt", dialect=Dialect(encoding="latin-1"))) == ["Köln", "Bern"]
    with pytest.raises(UnreadableInput, match=r"line 1: byte 1 \(0xf6\) is not UTF-8"):
        list(inputs.from_text(tmp_path / "a.txt"))


def test_a_pass_over_lines_goes_on_within_a_file(tmp_path):
    """Also where a block ends, and in a compressed file."""
    lines = [f"line {number}" for number in range(20)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    dataset = inputs.from_text(tmp_path / "*", dialect=Dialect(block_bytes=40))

    for stop in range(41):
        elements = iter(dataset)
        first = [next(elements) for _ in range(stop)]
        state = json.loads(json.dumps(elements.state()))
        assert first + list(dataset.iterator().restore(state)) == lines * 2


def test_rows_of_json_lines(tmp_path):
    """With the types that hold the values of all files; a missing key is null."""
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": "x"}\n{"b": null}\n')
    (tmp_path / "b.jsonl").write_text('{"a": 2.5}\n')

    assert inputs.from_json_lines(tmp_path / "*").to_arrow().to_pydict() == {
        "a": [1, None, 2.5],
        "b": ["x", None, None],
    }


def test_a_value_of_json_that_comes_late_is_reported(tmp_path):
    """With its line, and what to pass; with a schema it is read."""
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' * 2_000 + '{"a": "x"}\n')
    in_blocks = Dialect(block_bytes=4_000)

    with pytest.raises(UnreadableInput, match=r"line 2001 .*Pass from_json_lines a schema="):
        inputs.from_json_lines(tmp_path / "a.jsonl", dialect=in_blocks).to_arrow()
    with pytest.raises(UnreadableInput, match=r"has columns that the beginnings of the files do not have"):
        inputs.from_json_lines(tmp_path / "a.jsonl", schema=pa.schema([("b", pa.string())])).to_arrow()
    schema = pa.schema([("a", pa.string()), ("b", pa.int8())])
    assert inputs.from_json_lines(tmp_path / "a.jsonl", schema=schema).to_arrow()["a"][-1].as_py() == "x"


def test_rows_of_tf_examples(tmp_path):
    """A feature of one value is a plain column; records themselves are bytes."""
    features = [{"a": [number], "b": [0.5] * number, "c": [b"x"]} for number in range(3)]
    records = [serialized(each) for each in features]
    (tmp_path / "a.tfrecord").write_bytes(framed(records))
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(framed(records)))

    rows = inputs.from_tfrecord(tmp_path / "*").to_arrow()
    raw = list(inputs.from_tfrecord(tmp_path / "*", parse=False))

    assert rows.to_pylist() == [{"a": n, "b": [0.5] * n, "c": "x"} for n in range(3)] * 2
    assert raw == records * 2
    assert parsed(raw[1])["a"] == ("int64_list", [1])
    with pytest.raises(DatasetError, match="says how records are parsed"):
        inputs.from_tfrecord(tmp_path / "*", parse=False, schema=rows.schema)


def test_a_damaged_record_is_found(tmp_path):
    """By its checksum, where it is read."""
    content = bytearray(framed([serialized({"a": [1]}), serialized({"a": [2]})]))
    content[-6] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(content)
    elements = iter(inputs.from_tfrecord(tmp_path / "a.tfrecord", parse=False))

    assert next(elements)
    with pytest.raises(UnreadableInput, match=r"record 2, at byte \d+: its checksum is wrong"):
        next(elements)


def write_samples(path, files, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), value, np.uint8)).save(file, "png")
    return file.getvalue()


def test_files_of_a_tar_that_share_their_name_are_a_sample(tmp_path):
    """Up to the first dot; known kinds are decoded, hidden files left out."""
    array = io.BytesIO()
    np.save(array, np.arange(3))
    files = {
        "__meta__": b"",
        "day/1.png": png(7),
        "day/1.cls": b"3",
        "day/1.seg.json": b'{"a": [1]}',
        "day/2.npy": array.getvalue(),
        "day/2.TXT": "Köln".encode(),
        "day/2.bin": b"\0",
    }
    write_samples(tmp_path / "a.tar.gz", files, "w:gz")

    first, second = inputs.from_webdataset(tmp_path / "a.tar.gz")

    assert (first["__key__"], first["cls"], first["seg.json"]) == ("day/1", 3, {"a": [1]})
    assert first["png"].tolist() == np.full((2, 3, 3), 7).tolist()
    assert (second["npy"].tolist(), second["txt"], second["bin"]) == ([0, 1, 2], "Köln", b"\0")
    assert next(iter(inputs.from_webdataset(tmp_path / "a.tar.gz", decode=False)))["cls"] == b"3"


def test_a_pass_over_tar_shards_goes_on_at_a_sample(tmp_path):
    """Long names, which tar stores in files of their own, included; whatever the compression."""
    files = {f"{'long' * (40 * (n % 2))}{n}.{end}": str(n).encode() for n in range(5) for end in ("cls", "txt")}
    write_samples(tmp_path / "a.tar", files)
    write_samples(tmp_path / "b.tar.gz", files, "w:gz")
    dataset = inputs.from_webdataset(tmp_path / "*")
    expected = list(dataset)

    for stop in range(len(expected) + 1):
        elements = iter(dataset)
        first = [next(elements) for _ in range(stop)]
        state = json.loads(json.dumps(elements.state()))
        assert first + list(dataset.iterator().restore(state)) == expected


def test_what_is_no_sample_is_reported(tmp_path):
    """With the file, and its part."""
    write_samples(tmp_path / "a.tar", {"1.cls": b"x"})
    write_samples(tmp_path / "b.tar", {"1.txt": b"x", "1.TXT": b"x"})
    (tmp_path / "c.tar").write_bytes(b"no tar" * 200)

    with pytest.raises(FunctionFailed, match=r"sample 1: the file \.cls is not what it is called"):
        list(inputs.from_webdataset(tmp_path / "a.tar"))
    with pytest.raises(UnreadableInput, match=r"the file 1\.TXT is there twice"):
        list(inputs.from_webdataset(tmp_path / "b.tar"))
    with pytest.raises(UnreadableInput, match=r"c\.tar: is no tar file, or is damaged"):
        list(inputs.from_webdataset(tmp_path / "c.tar"))


def folder_of_images(place):
    for number, label in enumerate(["cat", "dog", "cat"]):
        (place / label).mkdir(parents=True, exist_ok=True)
        (place / label / f"{number}.png").write_bytes(png(number))
    return place


def test_images_of_a_folder_have_its_subfolders_as_labels(tmp_path):
    """As names, or as numbers in a list; in the size that is wanted."""
    place = folder_of_images(tmp_path / "images")
    (place / "notes.txt").write_text("no image")

    named = list(inputs.from_images(place))
    numbered = list(inputs.from_images(place, labels=["dog", "cat"], size=(4, 5), channels=1, num_parallel=2))

    assert [(each["label"], each["image"].shape, int(each["image"].max())) for each in named] == [
        ("cat", (2, 3, 3), 0),
        ("cat", (2, 3, 3), 2),
        ("dog", (2, 3, 3), 1),
    ]
    assert [(each["label"], each["image"].shape) for each in numbered] == [
        (1, (4, 5, 1)),
        (1, (4, 5, 1)),
        (0, (4, 5, 1)),
    ]
    assert {each["path"] for each in named} == {str(path) for path in place.glob("*/*.png")}


def test_images_are_shuffled_by_their_files(tmp_path):
    """Anew in each pass, and none of them is read for it."""
    dataset = inputs.from_images(folder_of_images(tmp_path), shuffle=True, seed=1)

    passes = {tuple(each["path"] for each in dataset.iterator(epoch=number)) for number in range(20)}

    assert len(passes) > 3
    assert len({frozenset(each) for each in passes}) == 1


def test_what_is_no_image_is_reported(tmp_path):
    """With its path; so is a folder without any, and a label that is not in the list."""
    place = folder_of_images(tmp_path / "images")
    with pytest.raises(FunctionFailed, match=r"which is not in labels=\['cat'\]"):
        list(inputs.from_images(place, labels=["cat"]))
    (place / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(FunctionFailed, match=r"cat/0\.png: decode_image: cannot identify image file"):
        list(inputs.from_images(place))
    with pytest.raises(DatasetError, match=r"no images in it\. Their names end in bmp"):
        inputs.from_images(tmp_path / "nothing")
    with pytest.raises(DatasetError, match=r"decode_image\(channels=2\)"):
        inputs.decode_image(png(0), channels=2)


@pytest.mark.parametrize("make", ["from_text", "from_json_lines", "from_tfrecord", "from_webdataset", "from_images"])
def test_another_file_gives_another_key(make, tmp_path):
    """By name, size and time; and by content, where a snapshot asks for that."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "a.tfrecord").write_bytes(framed([serialized({"a": [1]})]))
    write_tar(tmp_path / "a.tar", 2)
    (tmp_path / "a.png").write_bytes(png(1))
    endings = {"from_text": "txt", "from_json_lines": "jsonl", "from_tfrecord": "tfrecord", "from_webdataset": "tar"}
    path = tmp_path / f"a.{endings.get(make, 'png')}"
    before = {by: of_graph(getattr(inputs, make)(path).op, files_by=by) for by in ("mtime", "content")}

    content = path.read_bytes()
    changed = content.replace(b"a", b"b", 1) if make in {"from_text", "from_json_lines"} else content + bytes(16)
    path.write_bytes(changed if make != "from_tfrecord" else framed([serialized({"a": [2]})]))

    after = {by: of_graph(getattr(inputs, make)(path).op, files_by=by) for by in ("mtime", "content")}
    assert before["mtime"] != after["mtime"]
    assert before["content"] != after["content"]


class Numbers:
    """A source of a user's own, which notes what it was asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = []

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        self.asked.append(place)
        if place == 13:
            raise OSError("unlucky")
        return place * 10


def test_elements_by_their_numbers():
    """In order, or each of them once in another one; an element that fails is one element."""
    assert list(inputs.from_random_access(Numbers(3))) == [0, 10, 20]
    dataset = inputs.from_random_access(Numbers(20), shuffle=True, seed=1).ignore_errors()
    passes = [list(dataset.iterator(epoch=number)) for number in range(3)]

    assert len({tuple(each) for each in passes}) == 3
    assert all(sorted(each) == [n * 10 for n in range(20) if n != 13] for each in passes)
    with pytest.raises(FunctionFailed, match="Numbers raised OSError for element 13"):
        list(inputs.from_random_access(Numbers(20)))


def test_shards_of_a_source_read_only_their_own_elements():
    """Also of a shuffled one: together they are the whole."""
    found, sources = [], []
    for index in range(3):
        sources.append(Numbers(10))
        dataset = inputs.from_random_access(sources[-1], shuffle=True, seed=1).shard(3, index).skip(1).take(2)
        found += list(dataset.iterator(epoch=0))

    whole = list(inputs.from_random_access(Numbers(10), shuffle=True, seed=1).iterator(epoch=0))
    assert found == [whole[at] for at in (3, 6, 4, 7, 5, 8)]
    assert [len(source.asked) for source in sources] == [2, 2, 2]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 1000, 65_537])
def test_a_permutation_is_one(length):
    """Every number below the length once, for several seeds, and differently for each."""
    orders = [permuted(range(length), length, seed) for seed in range(3)]

    assert all(sorted(order) == list(range(length)) for order in orders)
    assert length < 5 or len({tuple(order) for order in orders}) == 3


def test_a_permutation_holds_no_numbers():
    """Any part of that of a source of a billion elements is there at once, and never changes."""
    assert permuted(range(10**9 - 3, 10**9), 10**9, 7) == PERMUTED


PERMUTED = [965531077, 952252113, 636836279]


def test_what_has_no_length_is_refused():
    """Or no elements by number."""
    with pytest.raises(DatasetError, match=r"from_random_access\(generator\): it has no length"):
        inputs.from_random_access(number for number in range(3))
    with pytest.raises(DatasetError, match=r"from_random_access\(set\): source\[0\] is not an element"):
        inputs.from_random_access({1, 2})


def test_files_are_listed_in_another_order_for_each_pass(tmp_path):
    """And read by whatever comes behind."""
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"{number}\n" * 2)

    dataset = inputs.list_files(tmp_path / "*.txt", shuffle=True, seed=2).interleave(inputs.from_text, cycle_length=2)
    passes = [list(dataset.iterator(epoch=number)) for number in range(3)]

    assert len({tuple(each) for each in passes}) == 3
    assert all(sorted(each) == sorted("001122334455") for each in passes)
    assert [path[-5] for path in inputs.list_files(tmp_path / "*.txt")] == list("012345")
