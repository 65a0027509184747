"""All names in README and docs/ exist: modules, classes, calls, keyword arguments, links, extras.

Python blocks are run (`test_docs.py`). This module checks the prose, and the blocks marked as text because they cannot
run: a name in them may never have existed, or may have been removed. Every module is imported to read its names, and
`pregel_async.langchain` needs langchain-core, which the suite's environment does not have: the nox session `langchain`
runs this file.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import pkgutil
import re
import tomllib
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip(
    "langchain_core",
    reason="imports every module, and pregel_async.langchain needs langchain-core: run `nox -s langchain`",
    exc_type=ImportError,
)

ROOT = Path(__file__).parents[1]
PACKAGES = ("pregel_async", "checkpoint_savers")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("**/*.md")),
]

OTHERS = {
    # LangGraph's and langchain-core's, on the page that leads over
    *("AsyncPostgresSaver", "AsyncPostgresStore", "AsyncSqliteSaver", "AsyncSqliteStore", "JsonPlusSerializer"),
    *("NodeInterrupt", "ToolNode", "TracePolicy", "RunnableLambda", "LangGraph"),
    *("MultiServerMCPClient", "load_mcp_tools"),
    *("MessageGraph", "ServerInfo"),
    # of browsers, Starlette and the standard library
    *("EventSource", "GZipMiddleware", "mount", "SelectorEventLoop", "simplefilter", "Task", "days"),
    # of msgspec, hypothesis and HTTP
    *("gc", "profile", "q"),
    "Report",  # a class of the reader's own
    *("DBOSUnexpectedStepError", "Replayer"),  # of DBOS and Temporal, with which a page compares
    # of the SDKs whose streams are read
    "create",
    "pregel_async.cost_usd",  # of OpenTelemetry: an attribute and a metric
    "RunStalledError",  # the type of a stored error, which no code raises
}
"""Names that are others', where the text says so."""

GIVEN = {"whose_thread", "MyStore"}
"""Functions of the reader's own, which a block that cannot run shows the use of."""


@cache
def modules() -> dict[str, ModuleType]:
    found: dict[str, ModuleType] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in PACKAGES:
            root = found[package] = importlib.import_module(package)
            for each in pkgutil.walk_packages(root.__path__, f"{package}."):
                if not each.name.endswith("__main__"):
                    found[each.name] = importlib.import_module(each.name)
    return found


@cache
def classes() -> dict[str, tuple[type, ...]]:
    """Our classes, by name."""
    found: dict[str, tuple[type, ...]] = {}
    for module in modules().values():
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__.partition(".")[0] in PACKAGES:
                found[name] = (*found.get(name, ()), value)
    return found


@cache
def attributes(kind: type) -> frozenset[str]:
    """Return a class's attributes: those that `dir` lists, the annotated ones, and those that its methods set."""
    found = set(dir(kind))
    for each in kind.__mro__:
        found.update(vars(each).get("__annotations__", {}))
        if each.__module__.partition(".")[0] in PACKAGES:
            found.update(set_in(each.__module__).get(each.__name__, ()))
    return frozenset(found)


@cache
def set_in(module: str) -> dict[str, set[str]]:
    """Return the attributes that methods set, by class of a module."""
    tree = ast.parse(inspect.getsource(modules()[module]))
    return {
        each.name: {
            node.attr for node in ast.walk(each) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
    }


@cache
def names() -> frozenset[str]:
    """Return all names in our packages: modules, their members, attributes, parameters."""
    found = set(dir(builtins))
    for path, module in modules().items():
        found.update(path.split("."))
        for name, value in vars(module).items():
            found.add(name)
            if inspect.isfunction(value):
                found.update(inspect.signature(value).parameters)
    for kinds in classes().values():
        for kind in kinds:
            found.update(attributes(kind))
            for value in (kind, *vars(kind).values()):
                if callable(value):
                    found.update(_parameters(value))
    return frozenset(found)


def _parameters(value: Any) -> list[str]:
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return []


CODE = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"(?<![\w./-])((?:pregel_async|checkpoint_savers)(?:\.\w+)+)")
CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)((?:\.\w+)*)\(")
CLASS = re.compile(r"([A-Z]\w*[a-z]\w*)((?:\.\w+)*)")
KEYWORD = re.compile(r"(?<![\w.\"'?&])([a-z_]\w*)=(?!=)")


def prose_of(text: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def unknown_in(text: str) -> list[str]:
    """Return the names on a page that do not exist."""
    found = [f"`{span}`" for span in CODE.findall(prose_of(text)) if not _is_known(span)]
    for code in re.findall(r"^```text\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        found.extend(_unknown_in_block(code))
    return found


def _is_known(span: str) -> bool:
    """Return True if all names in a piece of inline code exist."""
    if not all(path in OTHERS or _has(path) for path in DOTTED.findall(span)):
        return False
    whole = CLASS.fullmatch(span)
    for first, rest in [*CALL.findall(span), *([whole.groups()] if whole else [])]:
        last = rest.rpartition(".")[2] or first
        if not {first, last} & OTHERS and not (last in names() and _has_attribute(first, rest)):
            return False
    return all(name in names() or name in OTHERS for name in KEYWORD.findall(span))


def _has(path: str) -> bool:
    at, *rest = [path] if path in modules() else _split(path)
    value: Any = modules()[at]
    for name in rest:
        if inspect.isclass(value) and name in attributes(value):
            return True
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def _split(path: str) -> list[str]:
    """Return the longest module that a path begins with, and the names after it."""
    parts = path.split(".")
    size = max(size for size in range(1, len(parts)) if ".".join(parts[:size]) in modules())
    return [".".join(parts[:size]), *parts[size:]]


def _has_attribute(first: str, rest: str) -> bool:
    """Return True if a class of ours has the attribute; for other objects return True as well."""
    kinds = classes().get(first)
    return not rest or kinds is None or any(rest.split(".")[1] in attributes(kind) for kind in kinds)


def _unknown_in_block(code: str) -> list[str]:
    """Check Python that cannot run: its imports from our packages, and its calls by their names."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return []  # no Python
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    missing = [
        f"from {node.module} import {alias.name}"
        for node in imports
        if node.module is not None and node.module.partition(".")[0] in PACKAGES
        for alias in node.names
        if not _has(f"{node.module}.{alias.name}")
    ]
    defined = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    defined |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    defined |= {
        alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return missing + sorted(f"{name}()" for name in called - defined - names() - GIVEN)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_a_page_exist(page: Path) -> None:
    """No page calls, imports or passes a name that does not exist."""
    assert unknown_in(page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "call `as_gemini(chat)`",
        "see `pregel_async.errors.NoSuchError`",
        "see `pregel_async.nothing`",
        "a `NoSuchError` is raised",
        "call `graph.asnapshot()`",
        "pass `graph.ainvoke(..., durably=True)`",
        "`StateGraph.compile_all()`",
        "`StateSnapshot.answers`",
        "```text\nfrom pregel_async.adapters import show_message\n```",
        "```text\nfrom pregel_async.nothing import stream_message\n```",
        "```text\nx = as_gemini(chat)\n```",
    ],
)
def test_unknown_names_are_found(text: str) -> None:
    """The test above finds names that never existed."""
    assert unknown_in(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "`graph.ainvoke(input, durability='sync')`, `pregel_async.errors.BlockingCallWarning`, `StateSnapshot.next`",
        "`await saver.aget_tuple(config)`, `Retention(keep=3)`, `async with`, `a == b`, `x = 3`, `?thread_id=1`",
        "```text\nfrom pregel_async.adapters import stream_message\nasync def f(x):\n    return stream_message(x)\n```",
        "```text\nGET /chat\n```",
    ],
)
def test_known_names_are_accepted(text: str) -> None:
    """The test above accepts existing names, and names that are not ours."""
    assert unknown_in(text) == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts generate them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    """The file and heading of each link within the repository exist."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page.read_text("utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_extras_that_are_installed_are_there() -> None:
    """Each extra in `pip install 'pregel-async[serve]'`, `[serve]` and "extra `serve`" exists."""
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])
    named: set[str] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        for extras in re.findall(r"(?:pregel-async|'\.)\[([\w,]+)\]", text) + re.findall(r"extra `(\w+)`", text):
            named.update(extras.split(","))
    assert len(named) >= 4
    assert named <= known


def test_nothing_is_installed_by_name_before_there_is_a_release() -> None:
    """Before a release, an install command for a new environment names a checkout; only installed packages are named,
    for their extras."""
    for page in PAGES:
        found = re.findall(r"pip install [^`\n]*?\bpregel-async(?!\[)", page.read_text("utf-8"))
        assert not [each for each in found if "/" not in each], page.name
