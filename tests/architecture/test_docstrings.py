"""What the docstrings of public functions and methods say, read from the syntax tree.

Public is what `__all__` of a public module lists (docs/architecture.md says which modules those are), and of a listed
class every method without an underscore. A method that overrides a documented one inherits its docstring.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import pytest

MODULES = (
    "pregel_async",
    *(f"pregel_async.{name}" for name in ("errors", "functional", "graph", "managed", "messages", "node", "observing")),
    *(f"pregel_async.{name}" for name in ("parts", "policies", "pregel", "runtime", "testing", "types", "channels")),
    *(f"pregel_async.{name}" for name in ("adapters", "drawing", "prebuilt", "serve", "otel")),
    "checkpoint_savers",
    *(f"checkpoint_savers.{name}" for name in ("caches", "codec", "errors", "postgres", "sqlite", "stores", "upkeep")),
    *(f"checkpoint_savers.{name}" for name in ("abc", "metadata", "owner", "records", "saver_port")),
)

VERBS = frozenset(
    """
    abort accept acquire add advance aggregate allow answer append apply arrange ask assemble attach await be begin bind
    block build cache call cancel change check choose claim clear close coerce collect combine commit compare compile
    complete compute connect consume continue convert copy count create decide declare decode define delete derive
    describe detach digest disconnect discard do draw drop dump edit emit encode end enter erase evaluate exchange execute
    expand expire export extend fail fetch fill filter find finish fit flush fold follow forget format forward free generate
    get give group handle hold identify import include indicate infer inject insert install interrupt invoke iterate join keep kill leave
    let     limit list listen load lock look make map mark match measure merge move name normalize note notify number observe
    open order overwrite parse pass pause pin play plan prepare print produce prune publish put raise react read rebase
    receive record recover reduce refresh refuse register release remove rename render renew reopen repeat replace report
    request require reserve reset resolve restore resume retry return rewrite roll route run save schedule search seal
    select send serve set show shut sign simulate skip sleep sort spend split start stop store stream submit subscribe
    supply sweep switch take test throw trace track transfer translate tune turn unpin unregister unseal update upgrade
    use vacuum validate view wait walk warn watch wrap write yield
    """.split()
)
"""Words with which a summary may begin: what the call does, in the imperative."""

ELSEWHERE = frozenset({"pregel_async._api.compiled.PregelProtocol"})
"""Classes whose docstring says where their methods are documented: this one is what any graph can do, and the methods of
`Graph` have the docstrings."""

UNITS = re.compile(
    r"\b(seconds?|minutes?|ms|milliseconds?|bytes?|number of|how many|count|supersteps?|index|position|port|epoch|exit status|"
    r"times?|rows?|columns?|characters?|items?|entries|elements|messages|checkpoints|threads|tasks|attempts|parts?|"
    r"chunks|from 0|from 1|timedelta|status|size|seed|limit|at most|greatest|least|factor|score|turns|steps?|version|"
    r"sequence|rank|pages?|amounts?|tokens|per run|per thread|fraction|percent|requests|levels?|depth|nodes|units?)\b",
    re.IGNORECASE,
)
"""Words that say what a number counts or measures."""


class Verb(NamedTuple):
    """A public function or method: where it is, its syntax tree, its docstring, and whether it may inherit one."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    doc: str
    inherits: bool
    is_property: bool


def _tree(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    (node,) = ast.parse(source).body
    return node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in ("pregel_async", "checkpoint_savers")


@cache
def verbs() -> tuple[Verb, ...]:
    """All public functions and methods, each once."""
    found: dict[str, Verb] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", None) or _defined_in(module):
            value = getattr(module, name)
            if inspect.isclass(value) and _is_ours(value):
                for verb in _methods(value):
                    found.setdefault(verb.name, verb)
            elif inspect.isfunction(value) and _is_ours(value):
                node = _tree(value)
                if node is not None:
                    full = f"{value.__module__}.{value.__qualname__}"
                    found.setdefault(full, Verb(full, node, value.__doc__ or "", False, False))
    return tuple(found.values())


def _defined_in(module: ModuleType) -> list[str]:
    """The public names of a module without `__all__`."""
    return [
        name for name, value in vars(module).items() if not name.startswith("_") and _origin(value) == module.__name__
    ]


def _origin(value: Any) -> str:
    return getattr(value, "__module__", "") if inspect.isclass(value) or inspect.isfunction(value) else ""


def _methods(kind: type) -> Iterator[Verb]:
    for owner in kind.__mro__:
        if not _is_ours(owner) or f"{owner.__module__}.{owner.__qualname__}" in ELSEWHERE:
            continue
        for name, member in vars(owner).items():
            if name.startswith("_"):
                continue
            is_property = isinstance(member, property)
            function = member.fget if is_property else inspect.unwrap(getattr(member, "__func__", member))
            if not inspect.isfunction(function) or not _is_ours(function) or (node := _tree(function)) is None:
                continue
            inherits = any(name in vars(base) for base in owner.__mro__[1:])
            full = f"{owner.__module__}.{owner.__qualname__}.{name}"
            yield Verb(full, node, function.__doc__ or "", inherits, is_property)


def faults_of(verb: Verb) -> list[str]:
    """What a docstring lacks."""
    doc = inspect.cleandoc(verb.doc)
    if not doc:
        return [] if verb.inherits else ["has no docstring"]
    faults: list[str] = []
    summary = doc.split("\n\n")[0]
    if "\n" in summary or not summary.endswith((".", ":")):
        faults.append("its summary is not one line that ends with a full stop")
    if verb.is_property:
        return faults
    if summary.split()[0].lower().rstrip(",.:") not in VERBS:
        faults.append(f"its summary does not begin with a known verb: {summary.split()[0]!r}")
    if verb.inherits:
        return faults
    sections = _sections(doc)
    arguments = [
        argument
        for argument in [*verb.node.args.posonlyargs, *verb.node.args.args, *verb.node.args.kwonlyargs]
        if argument.arg not in ("self", "cls") and not argument.arg.startswith("_")
    ]
    for argument in arguments:
        said = sections.get("Args", {}).get(argument.arg)
        if said is None:
            faults.append(f"Args: does not name {argument.arg}")
        elif argument.arg != "seed" and _is_number(argument.annotation) and not UNITS.search(said):
            faults.append(f"Args: says no unit of {argument.arg}")
    if _returns(verb.node) and not sections.keys() & {"Returns", "Yields"} and not summary.startswith("Return "):
        faults.append("has no Returns:")
    if _raises(verb.node) and "Raises" not in sections:
        faults.append("has no Raises:")
    return faults


def _sections(doc: str) -> dict[str, dict[str, str]]:
    """Args, Returns, Yields and Raises of a docstring, and the text of each of their entries by name."""
    found: dict[str, dict[str, str]] = {}
    entries: dict[str, str] | None = None
    names: list[str] = []
    for line in doc.splitlines():
        if head := re.fullmatch(r"(Args|Returns|Yields|Raises|Attributes|Source|Example|Examples):", line.strip()):
            entries = found.setdefault(head[1], {})
        elif entries is not None and (entry := re.match(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)", line)):
            names = [name.strip(" *") for name in entry[1].split(",")]
            entries.update(dict.fromkeys(names, entry[2]))
        elif entries is not None and line.startswith("     "):
            for name in names:
                entries[name] = f"{entries.get(name, '')} {line.strip()}"
        elif line and not line.startswith(" "):
            entries = None
    return found


def _is_number(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    said = ast.unparse(annotation).strip("'\"")
    return any(part.strip() in ("int", "float", "timedelta", "Seconds") for part in said.split("|"))


def _returns(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    said = "" if node.returns is None else ast.unparse(node.returns).strip("'\"")
    return said not in ("", "None", "NoReturn", "Never", "Self")


def _raises(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the function's own code raises an exception of its own making."""
    pending: list[ast.AST] = list(node.body)
    while pending:
        each = pending.pop()
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call):
            return True
        pending.extend(ast.iter_child_nodes(each))
    return False


@pytest.mark.parametrize("verb", verbs(), ids=lambda verb: verb.name)
def test_a_public_docstring_is_complete(verb: Verb) -> None:
    """An imperative summary of one line; `Args` for each argument, with units on numbers; `Returns`; `Raises`."""
    assert not faults_of(verb), f"{verb.name}: {'; '.join(faults_of(verb))}"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def run(a: int) -> None:\n    pass", "has no docstring"),
        ('def run() -> None:\n    """Runs it."""', "its summary does not begin with a known verb: 'Runs'"),
        ('def run() -> None:\n    """Run\n    it."""', "its summary is not one line that ends with a full stop"),
        ('def run(a: str) -> None:\n    """Run it."""', "Args: does not name a"),
        (
            'def run(a: float) -> None:\n    """Run it.\n\n    Args:\n        a: how long.\n    """',
            "Args: says no unit of a",
        ),
        ('def run() -> int:\n    """Run it."""', "has no Returns:"),
        ('def run() -> None:\n    """Run it."""\n    raise ValueError("no")', "has no Raises:"),
    ],
)
def test_what_a_docstring_lacks_is_found(source: str, fault: str) -> None:
    """Each rule can fail."""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert faults_of(Verb("run", node, ast.get_docstring(node) or "", False, False)) == [fault]
