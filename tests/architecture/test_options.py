"""What an option costs: in how many files of the product its name stands."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import pytest

from pregel_async import Pregel, StateGraph, entrypoint
from pregel_async._api.compiled import Graph
from pregel_async._checks import options as declared

ROOT = Path(__file__).parents[2]
VERBS: dict[Any, Any] = {
    Graph.ainvoke: declared.InvokeOptions,
    Graph.invoke: declared.InvokeOptions,
    Graph.astream: declared.StreamOptions,
    Graph.stream: declared.StreamOptions,
    Graph.abatch: declared.BatchOptions,
    Graph.batch: declared.BatchOptions,
    Graph.abatch_as_completed: declared.BatchOptions,
    Graph.batch_as_completed: declared.BatchOptions,
    Graph.aupdate_state: declared.UpdateOptions,
    Graph.update_state: declared.UpdateOptions,
    Graph.abulk_update_state: declared.UpdateOptions,
    Graph.bulk_update_state: declared.UpdateOptions,
    StateGraph.compile: declared.CompileOptions,
    Pregel.__init__: declared.PregelOptions,
    entrypoint.__init__: declared.EntrypointOptions,
}
POLICIES = declared.PolicyOptions.__annotations__.keys()
"""Options of a node, which `Pregel` and `@entrypoint` take for theirs: `NodePolicies` is their record."""

OPTIONS = sorted({name for options in VERBS.values() for name in options.__annotations__ if name not in POLICIES})

COMMON = frozenset(
    ("after", "blocking", "cache", "context", "context_schema", "control", "debug", "durability", "interrupt_after")
    + (
        "interrupt_before",
        "max_concurrency",
        "name",
        "retention",
        "store",
        "stream_mode",
        "subgraphs",
        "unknown",
        "version",
        "environment",
    )
)
"""Options whose words name other things, too: a drawing's marks, a saver's argument, a node's policies. Of these, only
what clearly is the option counts."""

RECORDS = frozenset(("options", "settings", "definition"))


@cache
def kernel() -> list[Path]:
    """The files of the kernel and of the savers. What surrounds the kernel calls the verbs, as a user's program does."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    modules = next(each for each in contracts if each["id"] == "port-only")["source_modules"]
    places = [ROOT / module.replace(".", "/") for module in modules] + [ROOT / "checkpoint_savers"]
    return [
        path for place in places for path in ([place.with_suffix(".py")] if not place.is_dir() else place.rglob("*.py"))
    ]


def names_in(tree: ast.AST) -> Iterator[str]:
    """The options that a module names, by the rule of `test_files_of_an_option`."""
    for node in ast.walk(tree):
        listed: list[str] = []
        if isinstance(node, ast.ClassDef):
            listed = [
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            ]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            listed = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        elif isinstance(node, ast.Call):
            listed = [each.arg for each in node.keywords if each.arg is not None]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
                yield from _key(node.args[0])
        elif isinstance(node, ast.Subscript) and getattr(node.value, "id", "") != "Literal":
            yield from _key(node.slice)
        elif isinstance(node, ast.Attribute):
            receiver = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if receiver.lstrip("_") in RECORDS or node.attr.lstrip("_") not in COMMON:
                yield node.attr.lstrip("_")
        plain = [name.lstrip("_") for name in listed]
        several = len(set(plain).intersection(OPTIONS)) >= 3
        yield from (name for name in plain if several or name not in COMMON)


def _key(at: ast.expr) -> Iterator[str]:
    if isinstance(at, ast.Constant) and isinstance(at.value, str):
        yield at.value


@cache
def files() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in kernel():
        for name in names_in(ast.parse(path.read_text())):
            found[name].add(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("option", OPTIONS)
def test_files_of_an_option(option: str) -> None:
    """An option stands in at most four files of the kernel and the savers: where it is declared and checked, in the
    record of a run, and where it is obeyed.

    What counts, over the syntax tree: its name as a parameter, a field of a class, a keyword argument, an attribute, and
    as a key that is read (`options.get("time_limit")`), each with and without a leading underscore. A word that names other
    things too (`COMMON`) counts as a key, as an attribute of what is called options, settings or definition, and
    as a parameter, field or keyword in a list with at least two other options: such lists are what hands options on.
    """
    where = sorted(files()[option])
    assert len(where) <= 4, where


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__qualname__)
def test_signatures(verb: Any) -> None:
    """`help()` and notebooks show all options of a verb, each by its name and with its type as it is written."""
    shown = inspect.signature(verb).parameters
    assert set(VERBS[verb].__annotations__) <= set(shown)
    assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in VERBS[verb].__annotations__)
    assert "ForwardRef" not in str(inspect.signature(verb))


class State(TypedDict):
    x: int


def double(given: int) -> int:
    return 2 * given


@pytest.mark.anyio
async def test_the_defaults_that_help_shows() -> None:
    """A signature shows what an option is without a value: to pass this value changes nothing."""

    def shown(verb: Any) -> dict[str, Any]:
        parameters = inspect.signature(verb).parameters
        return {name: parameters[name].default for name in VERBS[verb].__annotations__}

    assert not [name for verb in VERBS for name, default in shown(verb).items() if default is ...]
    assert shown(Graph.ainvoke)["on_conflict"] == "reject" and shown(StateGraph.compile)["blocking"] is True
    builder = StateGraph(State).add_node("a", lambda state: {"x": state["x"] + 1}).add_edge("__start__", "a")
    plain, graph = builder.compile(), builder.compile(**shown(StateGraph.compile))
    made, default = graph._definition, plain._definition
    assert (made.options, made.name, made.stream_mode) == (default.options, default.name, default.stream_mode)
    assert await graph.ainvoke({"x": 0}, **shown(Graph.ainvoke)) == {"x": 1} == await plain.ainvoke({"x": 0})
    assert await graph.abatch([{"x": 0}], **shown(Graph.abatch)) == [{"x": 1}] == await plain.abatch([{"x": 0}])
    chunks = [chunk async for chunk in graph.astream({"x": 0}, **shown(Graph.astream))]
    assert chunks == [{"a": {"x": 1}}] == [chunk async for chunk in plain.astream({"x": 0})]
    entry = entrypoint(**shown(entrypoint.__init__))
    assert entry(double)._definition.options == entrypoint()(double)._definition.options


def test_the_kinds_of_one_verb_have_the_same_options() -> None:
    """The overloads of `ainvoke` and of `astream` differ in the types of options, and not in their names."""
    for options, kinds in (
        (declared.InvokeOptions, (declared.PlainOutput, declared.OutputRecord, declared.OutputParts)),
        (declared.StreamOptions, (declared.StreamedParts,)),
    ):
        for kind in kinds:
            assert kind.__annotations__.keys() == options.__annotations__.keys()


@pytest.mark.anyio
async def test_an_unknown_option_is_refused_by_name() -> None:
    """As Python refuses an unknown keyword argument: a `TypeError` that names the verb, the option and its nearest."""
    builder: Any = StateGraph(dict).add_node("a", lambda state: state).add_edge("__start__", "a")
    with pytest.raises(
        TypeError, match=r"compile\(\) got an unexpected keyword argument 'tme_limit'. Did you mean 'time_limit'\?"
    ):
        builder.compile(tme_limit=1)
    graph = builder.compile()
    for verb in ("invoke", "stream", "batch", "update_state", "bulk_update_state"):
        with pytest.raises(TypeError, match=rf"^{verb}\(\) got an unexpected keyword argument 'nothing_like_it'$"):
            getattr(graph, verb)({}, {}, nothing_like_it=1)
    for verb in ("ainvoke", "abatch", "aupdate_state", "abulk_update_state"):
        with pytest.raises(TypeError, match=rf"^{verb}\(\) got an unexpected"):
            await getattr(graph, verb)({}, {}, nothing_like_it=1)
    with pytest.raises(TypeError, match=r"^astream\(\) got an unexpected"):
        graph.astream({}, nothing_like_it=1)
    for made in (entrypoint, Pregel):
        with pytest.raises(TypeError, match=rf"^{made.__name__}\(\) got an unexpected"):
            made(
                **(
                    {"nodes": {}, "channels": {}, "input_channels": "a", "output_channels": "a"}
                    if made is Pregel
                    else {}
                ),
                nothing_like_it=1,
            )
