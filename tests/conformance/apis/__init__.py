"""Our answers, by form of question. A new part of the product adds its module here."""

from collections.abc import Mapping

from tests.conformance.apis import example_gen, resolver_ops, split_names, strategies
from tests.conformance.judge import Answer

APIS: Mapping[str, Answer] = {
    **example_gen.APIS,
    **split_names.APIS,
    **resolver_ops.APIS,
    **strategies.APIS,
}
