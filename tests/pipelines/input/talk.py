"""The example of the talk on tf.data: a source of 20 ms, a map of 100 and a map of 200 after it."""

from spanwise.pipelines.input.tuning.latency import LatencyKind, LatencyNode, Parameter

SOURCE_S, F_S, G_S = 0.02, 0.1, 0.2


def tree(f, g, **more):
    """Its tree; `f` and `g` are numbers, or the highest that a parameter may go to."""
    source = LatencyNode(name="source", kind=LatencyKind.SOURCE, own_s=SOURCE_S)
    first = LatencyNode(
        name="f", kind=LatencyKind.ASYNC_KNOWN_RATIO, own_s=F_S, parallelism=f, inputs=(source,), **more
    )
    return LatencyNode(name="g", kind=LatencyKind.ASYNC_KNOWN_RATIO, own_s=G_S, parallelism=g, inputs=(first,), **more)


def free(most, **more):
    """Its tree with both parallelisms to be found."""
    return tree(Parameter(key="f", maximum=most), Parameter(key="g", maximum=most), **more)


def one_after_another():
    """Its tree without parallel maps."""
    source = LatencyNode(name="source", kind=LatencyKind.SOURCE, own_s=SOURCE_S)
    return LatencyNode(name="g", own_s=G_S, inputs=(LatencyNode(name="f", own_s=F_S, inputs=(source,)),))
