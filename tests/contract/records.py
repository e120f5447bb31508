"""Records for the store's tests: short ways to make them, and what of them must come back."""

from dataclasses import replace

from spanwise.orchestrator.artifact import Artifact
from spanwise.orchestrator.run import Execution, Run, State
from spanwise.orchestrator.store import Address

MODELS = Address("flights", "Trainer", "model")
EXAMPLES = Address("flights", "ExampleGen", "examples")


def model(uri="/models/1", **properties):
    return Artifact(uri, kind="Model", content="c0ffee", size_bytes=3 * 2**31, properties=properties)


def examples(span, version=None, uri="/examples/1"):
    return Artifact(
        uri, kind="Examples", properties={"span": span, "version": version, "split_names": ["train", "eval"]}
    )


def begin(store, node="Trainer", *claims, pipeline="flights", run=None, **fields):
    """An execution in a run of its own, unless one is given."""
    number = run or store.begin_run(Run(pipeline=pipeline)).number
    wanted = Execution(pipeline=pipeline, run=number, node=node, component=f"{node}Component", **fields)
    return store.begin(wanted, *claims)


def publish(store, address, *drafts, run=None, claims=(), inputs=None, **fields):
    """The execution that made these drafts, as published."""
    begun = begin(store, address.node, pipeline=address.pipeline, run=run)
    fields = {"state": State.COMPLETE, "outputs": {address.key: drafts}, **fields}
    return store.publish(replace(begun, inputs=inputs or {}, **fields), *claims)


def publish_one(store, address, draft):
    return publish(store, address, draft).outputs[address.key][0]


def told(record):
    """Everything a record says, artifacts included, as something that can be compared."""
    if isinstance(record, Artifact):
        return {"kind": record.kind, **vars(record)}
    if isinstance(record, Execution):
        return {**vars(record), "inputs": _sides(record.inputs), "outputs": _sides(record.outputs)}
    return record


def _sides(artifacts):
    return {key: [told(a) for a in row] for key, row in artifacts.items()}


def without_ids(record):
    """The same for stores that count differently: artifacts by name, no ids."""
    if isinstance(record, Artifact):
        return {k: v for k, v in told(record).items() if k != "id"}
    sides = {
        side: {k: [a.name for a in row] for k, row in getattr(record, side).items()} for side in ("inputs", "outputs")
    }
    return {k: v for k, v in {**vars(record), **sides}.items() if k != "id"}
