"""tf.Example by the protobuf library, for the tests of a reader that does without: messages, records, files."""

import struct

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet


def _classes():
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for name, kind in (("BytesList", "TYPE_BYTES"), ("FloatList", "TYPE_FLOAT"), ("Int64List", "TYPE_INT64")):
        message = file.message_type.add(name=name)
        message.field.add(name="value", number=1, label="LABEL_REPEATED", type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        snake = name.replace("List", "_list").lower()
        feature.field.add(
            name=snake,
            number=number,
            label="LABEL_OPTIONAL",
            type="TYPE_MESSAGE",
            type_name=f".t.{name}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label="LABEL_OPTIONAL", type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=".t.Feature")
    features.field.add(
        name="feature", number=1, label="LABEL_REPEATED", type="TYPE_MESSAGE", type_name=".t.Features.FeatureEntry"
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=".t.Features")
    steps = file.message_type.add(name="FeatureList")
    steps.field.add(name="feature", number=1, label="LABEL_REPEATED", type="TYPE_MESSAGE", type_name=".t.Feature")
    lists = file.message_type.add(name="FeatureLists")
    entry = lists.nested_type.add(name="FeatureListEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label="LABEL_OPTIONAL", type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=".t.FeatureList")
    lists.field.add(
        name="feature_list",
        number=1,
        label="LABEL_REPEATED",
        type="TYPE_MESSAGE",
        type_name=".t.FeatureLists.FeatureListEntry",
    )
    sequence = file.message_type.add(name="SequenceExample")
    for number, (name, kind) in enumerate((("context", "Features"), ("feature_lists", "FeatureLists")), 1):
        sequence.field.add(
            name=name, number=number, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=f".t.{kind}"
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{n}")) for n in ("Example", "SequenceExample")
    )


Example, SequenceExample = _classes()


def serialized(features) -> bytes:
    """A record. A feature is a list of values of one kind; `None` is a feature without a kind."""
    example = Example()
    for name, values in features.items():
        _fill(example.features.feature[name], values)
    return example.SerializeToString(deterministic=True)


def _fill(feature, values):
    if values is None:
        return
    kind = "float" if any(isinstance(v, float) for v in values) else "int64"
    kind = "bytes" if any(isinstance(v, bytes) for v in values) else kind
    getattr(feature, f"{kind}_list").SetInParent()
    getattr(feature, f"{kind}_list").value.extend(values)


def serialized_sequence(context, lists) -> bytes:
    """A record of a SequenceExample. A feature list is a list of such features, one a step."""
    example = SequenceExample()
    for name, values in context.items():
        _fill(example.context.feature[name], values)
    for name, steps in lists.items():
        example.feature_lists.feature_list[name].SetInParent()
        for values in steps:
            _fill(example.feature_lists.feature_list[name].feature.add(), values)
    return example.SerializeToString(deterministic=True)


def parsed_sequence(record: bytes):
    """The values of each feature, and of each step of each feature list."""
    example = SequenceExample()
    example.ParseFromString(record)

    def values(feature):
        kind = feature.WhichOneof("kind")
        return list(getattr(feature, kind).value) if kind else []

    context = {name: values(feature) for name, feature in example.context.feature.items()}
    lists = example.feature_lists.feature_list.items()
    return context, {name: [values(step) for step in steps.feature] for name, steps in lists}


def parsed(record: bytes):
    """Kind and values of each feature, or None if the record is no tf.Example."""
    example = Example()
    try:
        example.ParseFromString(record)
    except Exception:  # noqa: BLE001  each implementation of protobuf has its own
        return None
    return {
        name: (kind := feature.WhichOneof("kind"), list(getattr(feature, kind).value) if kind else [])
        for name, feature in example.features.feature.items()
    }


def sets_aside(record: bytes) -> bool:
    """Whether the library keeps a feature unread, as it does when there is a field beside its name and values.

    Or keeps what a SequenceExample has and an Example has not.
    """
    example = Example()
    try:
        example.ParseFromString(record)
    except Exception:  # noqa: BLE001  as above
        return False
    beside = any(field.field_number == 2 for field in UnknownFieldSet(example))
    return beside or any(field.field_number == 1 for field in UnknownFieldSet(example.features))


def framed(records) -> bytes:
    """A TFRecord file."""

    def masked(data):
        crc = google_crc32c.value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    heads = ((struct.pack("<Q", len(record)), record) for record in records)
    return b"".join(head + masked(head) + record + masked(record) for head, record in heads)
