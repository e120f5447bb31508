"""Statements: which of those at the top of a module may change something elsewhere when it is imported. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spanwise.orchestrator.user_code import NameUse

_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Functions of Python that change, or give, what they are called with: `setattr(library, "name", value)`.
_OF_ARGUMENT = frozenset({"setattr", "delattr", "getattr", "vars"})


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A call or an assignment that may change something elsewhere: `np.random.seed(SEED)`."""

    text: str  #: with what surrounds it, such as the condition under which it runs
    target: NameUse  #: what it calls or assigns to: `np.random.seed`
    uses: tuple[NameUse, ...]  #: the names that it takes values from, with those that it calls
    is_call: bool  #: whether the target is called, not changed from outside
    is_imported: bool  #: whether the target is of another module
    is_nested: bool  #: whether it is within `if`, `for`, `try` or the like
    is_definition: bool  #: whether it is a decorator that registers what is defined


def find_statements(tree: ast.Module) -> list[Statement]:
    """The statements of a module that may change something elsewhere, also those within `if`, `for`, `try` and `with`.

    What is said of the script, `if __name__ == "__main__"`, is left out. Values that a loop sets are no use of a name.
    """
    imported: set[str] = set()
    in_loops: set[str] = set()
    for each in _of_module(tree):
        if isinstance(each, ast.Import | ast.ImportFrom):
            imported.update(alias.asname or alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.For | ast.AsyncFor | ast.While):
            in_loops.update(n.id for n in ast.walk(each) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return list(_find(tree.body, (), frozenset(imported), frozenset(in_loops)))


def _of_module(tree: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(tree):
        if not isinstance(each, _Definition):
            yield each
            yield from _of_module(each)


def _find(
    body: Sequence[ast.AST], around: tuple[ast.expr, ...], imported: frozenset[str], in_loops: frozenset[str]
) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, _Definition):
            acting = [each for each in statement.decorator_list if _registers(each)]
        else:
            acting = list(_targets(statement))
        for target in acting:
            root = _root(target)
            if root is None:
                continue
            is_definition = isinstance(statement, _Definition)
            shown: ast.AST = target if is_definition else statement
            uses = dict.fromkeys(use for each in (*around, shown) for use in _uses(each))
            is_call = isinstance(target, ast.Call) and not _acts_on_argument(target)
            if not is_call:
                uses.pop(root, None)
            if isinstance(statement, _Definition):
                uses[NameUse(statement.name, (), is_global=True)] = None
            yield Statement(
                text="\n".join(ast.unparse(each) for each in (*around, shown)),
                target=root,
                uses=tuple(use for use in uses if use.name not in in_loops),
                is_call=is_call,
                is_imported=root.name in imported,
                is_nested=bool(around),
                is_definition=is_definition,
            )
        parts = [] if isinstance(statement, _Definition) else list(ast.iter_child_nodes(statement))
        inner = [each for each in parts if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)]
        if inner and not _is_of_script(statement):
            conditions = [each for part in parts for each in _expressions(part)]
            yield from _find(inner, (*around, *conditions), imported, in_loops)


def _expressions(part: ast.AST) -> list[ast.expr]:
    """What a compound statement says before its body."""
    return [part] if isinstance(part, ast.expr) else [part.context_expr] if isinstance(part, ast.withitem) else []


def _is_of_script(statement: ast.AST) -> bool:
    """Whether it is `if __name__ == "__main__"`."""
    return isinstance(statement, ast.If) and any(use.name == "__name__" for use in _uses(statement.test))


def _registers(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")).startswith("register")


def _targets(statement: ast.AST) -> Iterator[ast.expr]:
    """What a statement calls for its effect, or assigns to that is no name of the module."""
    if isinstance(statement, ast.Expr):
        value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        if isinstance(value, ast.Call):
            yield value
        return
    if isinstance(statement, ast.Assign):
        targets = [each for target in statement.targets for each in _flat(target)]
        if all(isinstance(each, ast.Name) and not each.id.strip("_") for each in targets):
            yield from _targets(ast.Expr(statement.value))  # `_ = np.random.seed(1)`
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target] if statement.value is not None else []
    elif isinstance(statement, ast.Delete):
        targets = statement.targets
    else:
        return
    yield from (each for each in targets if isinstance(each, ast.Attribute | ast.Subscript))


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [each for inner in target.elts for each in _flat(inner)]
    return [target.value] if isinstance(target, ast.Starred) else [target]


def _root(target: ast.expr) -> NameUse | None:
    """The name that a target begins with, and what is read off it at once."""
    attributes: list[str] = []
    while not isinstance(target, ast.Name):
        if isinstance(target, ast.Attribute):
            attributes.insert(0, target.attr)
            target = target.value
        elif isinstance(target, ast.Subscript):
            attributes, target = [], target.value
        elif isinstance(target, ast.Call):
            attributes, target = [], target.args[0] if _acts_on_argument(target) else target.func
        else:
            return None
    return NameUse(target.id, tuple(attributes), is_global=True)


def _acts_on_argument(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in _OF_ARGUMENT and bool(call.args)


def _uses(node: ast.AST) -> Iterator[NameUse]:
    """The names in a piece of code, with what is read off them at once."""
    attributes: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        attributes.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield NameUse(inner.id, tuple(attributes), is_global=True)
        return
    for each in ast.iter_child_nodes(inner):
        yield from _uses(each)
