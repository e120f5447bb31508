"""Our answers, by form of question. A new part of the product adds its module here."""

from collections.abc import Mapping

from tests.conformance.apis import (
    cache_key,
    example_gen,
    inputs,
    life,
    partial_runs,
    query,
    resolver_ops,
    split_names,
    strategies,
    transform,
    verdicts,
)
from tests.conformance.judge import Answer

APIS: Mapping[str, Answer] = {
    **example_gen.APIS,
    **query.APIS,
    **split_names.APIS,
    **resolver_ops.APIS,
    **strategies.APIS,
    **inputs.APIS,
    **cache_key.APIS,
    **partial_runs.APIS,
    **life.APIS,
    **transform.APIS,
    **verdicts.APIS,
}
