"""The house's rules, as tests: layers, public names, what an import loads, what a file says about itself."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_rooms import PLACES

ROOT = Path(__file__).parents[2]
PACKAGES = ("pregel_async", "checkpoint_savers")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FILES = (
    sorted(
        ROOT / name
        for name in subprocess.run(
            ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.splitlines()
    )
    or MODULES
)  # no checkout: what was installed
_MARK = r"# (?:type: ignore\[[\w, -]+\]|pyright: ignore(?:\[[\w, ]+\])?|(?:ruff: )?noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|pragma: no cover)"
EXEMPTS = re.compile(r"type: ignore|mypy: |pyright: |noqa|pragma: no|\b(?:TODO|FIXME|XXX)\b")
EXEMPTION = re.compile(rf"(?:{_MARK} *)+ # \S.{{4,}}")
UNUSED = (
    "asyncio",
    "concurrent.futures",
    "random",
    "socket",
    "ssl",
    "unicodedata",
    "checkpoint_savers.bridge",
    "checkpoint_savers.caches.abc",
    "checkpoint_savers.stores.abc",
    "checkpoint_savers.upkeep.threads",
    "pregel_async._runtime.sync.background_portal",
    "pregel_async.functional",
)
"""What many programs do without, and what others load with the event loop that they run."""

HEAVY = (
    "aiosqlite",
    "sqlite3",
    "psycopg",
    "psycopg_pool",
    "trio",
    "typer",
    "rich",
    "pydantic",
    "pytest",
    "hypothesis",
    "msgspec.json_schema",
    "starlette",
    "sse_starlette",
    "fastapi",
    "opentelemetry",
)


UNLISTED = {
    *(f"checkpoint_savers.{name}" for name in ("abc", "errors", "metadata", "owner", "records", "saver_port")),
    "pregel_async.pytest_plugin",  # pytest imports it by its name
    "pregel_async.langchain",  # needs langchain-core
}
"""Public modules without `__all__`, or that cannot be imported here."""

OMITTED = {"PostgresSaver", "PostgresStore", "exported"}
"""Names that no `__all__` has: those that need an extra, without which `import *` has to work, and a tool of the packages."""


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_import_contracts_are_kept() -> None:
    """Layers import only downwards, and the algorithm knows no event loop, clock, randomness or log."""
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_children_are_started_in_one_way() -> None:
    """A child that never begins warns of nothing: only `checkpoint_savers.children` calls a group's `start_soon`."""
    called = {
        names(path)
        for path in MODULES
        if "conformance" not in path.parts and re.search(r"\.start_soon\b", path.read_text(encoding="utf-8"))
    }
    assert called == {"checkpoint_savers/children.py"}


def test_importing_the_runtime_loads_no_driver_and_no_tool() -> None:
    """`import pregel_async` loads anyio and msgspec; drivers, the command line and event loops are loaded when used."""
    code = "import sys, json, pregel_async, checkpoint_savers; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(json.loads(ran.stdout)) - {"sitecustomize"}  # some distributions' own
    assert {"anyio", "msgspec"} <= loaded
    assert loaded.isdisjoint(HEAVY)
    assert loaded.isdisjoint(UNUSED)
    assert len(loaded) <= 325
    assert not any(
        name.startswith(("pregel_async.cli", "pregel_async.serve", "pregel_async.otel", "pregel_async.observing"))
        or name.startswith("checkpoint_savers.sqlite")
        for name in loaded
    )


def test_names_that_are_loaded_when_asked_for() -> None:
    """They are there for `import *` and `dir()`, from any thread, and what is not there is no attribute."""
    code = """
        import threading, pregel_async, checkpoint_savers
        found = []
        def ask():
            found.append((pregel_async.entrypoint, checkpoint_savers.InMemoryStore, checkpoint_savers.SqliteSaver))
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and len(set(found)) == 1, found
        import checkpoint_savers.caches, checkpoint_savers.stores
        for package in (pregel_async, checkpoint_savers, checkpoint_savers.caches, checkpoint_savers.stores):
            assert set(package.__all__) <= set(dir(package))
        for package in (pregel_async, checkpoint_savers):
            names = {}
            exec(f"from {package.__name__} import *", names)
            assert set(package.__all__) <= set(names)
            try:
                package.nothing
            except AttributeError as error:
                assert str(error) == f"module {package.__name__!r} has no attribute 'nothing'"
            else:
                raise AssertionError
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT)


def test_annotations_can_be_resolved() -> None:
    """What is public tells those who ask at run time what it takes, also where that is of a kind not loaded yet."""
    code = """
        import inspect, typing, pregel_async, checkpoint_savers
        for package in (pregel_async, checkpoint_savers):
            for name in package.__all__:
                value = getattr(package, name)
                if not (inspect.isclass(value) or inspect.isfunction(value)):
                    continue
                typing.get_type_hints(value)
                for verb, each in vars(value).items():
                    if inspect.isfunction(each) and (not verb.startswith("_") or verb == "__init__"):
                        typing.get_type_hints(each)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=ROOT)


def test_an_item_of_long_term_memory_is_read_by_a_process_that_has_no_store() -> None:
    """A state may hold what a store has answered: the graph knows its type without the program's having a store."""
    code = """
        import anyio, sys
        from datetime import UTC, datetime
        from typing import Any, TypedDict
        from pregel_async import StateGraph
        from checkpoint_savers import SqliteSaver
        State = TypedDict("State", {"item": Any})
        def item(state):
            from checkpoint_savers.stores import Item
            now = datetime.now(UTC)
            return {"item": Item(value={"n": 1}, key="k", namespace=("a",), created_at=now, updated_at=now)}
        async def main(path, write):
            async with SqliteSaver.from_conn_string(path) as saver:
                graph = StateGraph(State).add_node("n", item).set_entry_point("n").compile(saver)
                if write:
                    await graph.ainvoke({}, "t")
                else:
                    assert "checkpoint_savers.stores.abc" not in sys.modules
                    assert (await graph.aget_state("t")).values["item"].value == {"n": 1}
        anyio.run(main, sys.argv[1], sys.argv[2] == "write")
    """
    with tempfile.TemporaryDirectory() as place:
        for act in ("write", "read"):
            command = [sys.executable, "-c", textwrap.dedent(code), f"{place}/threads.db", act]
            subprocess.run(command, check=True, cwd=ROOT)


def test_the_savers_alone_do_not_load_the_runtime() -> None:
    """checkpoint_savers stands by itself."""
    code = "import sys, checkpoint_savers; sys.exit(any(name.startswith('pregel_async') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", sorted(PLACES - UNLISTED))
def test_public_names_are_sorted_and_real(name: str) -> None:
    """`__all__` is sorted, every name in it exists, and a package leaves out none of its own that its `__init__` imports."""
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(
        module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    ) or list(module.__all__) == sorted(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None
    inside = {key for key, value in vars(module).items() if getattr(value, "__module__", "").startswith(f"{name}.")}
    assert {key for key in inside if not key.startswith("_")} <= {*module.__all__, *OMITTED}


@pytest.mark.parametrize("path", MODULES, ids=names)
def test_every_module_says_what_it_is(path: Path) -> None:
    """The first docstring line states the module's one idea."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert text, f"{names(path)} has no docstring"
    assert text.splitlines()[0].rstrip().endswith((".", ":", "?")), names(path)


def test_the_algorithm_reads_in_one_file() -> None:
    """The file a newcomer opens first starts with the four words, and stays short."""
    path = ROOT / "pregel_async/_core/superstep.py"
    source = path.read_text("utf-8")
    text = ast.get_docstring(ast.parse(source))
    assert text is not None and text.splitlines()[0] == "The algorithm: plan, execute, update, checkpoint."
    assert len(source.splitlines()) < 400
    functions = [
        node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [name for name in functions if name in ("run", "plan", "collect", "update")] == [
        "run",
        "plan",
        "collect",
        "update",
    ]


def exemptions(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a file that exempt a line from a check, or put something off, with their lines."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and EXEMPTS.search(token.string):
                yield token.start[0], token.string


@pytest.mark.parametrize("path", FILES, ids=names)
def test_nothing_is_left_for_later(path: Path) -> None:
    """No note to do something later stands anywhere, and every exemption gives its reason beside it, in a comment of its
    own behind the last mark. (What pytest skips says why by itself: `reason=` is required.)"""
    for number, comment in exemptions(path):
        assert EXEMPTION.fullmatch(comment), f"{names(path)}:{number}: {comment} needs its reason beside it"


SKIPS = frozenset(("skip", "skipif", "importorskip", "xfail"))


@pytest.mark.parametrize("path", [path for path in FILES if "tests" in path.parts], ids=names)
def test_what_is_skipped_says_why(path: Path) -> None:
    """Every call of pytest's that leaves a test out gives a reason, in words for whoever reads the summary."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SKIPS:
            given = [word.value for word in node.keywords if word.arg == "reason"]
            given += node.args[:1] if node.func.attr == "skip" else []
            assert given, f"{names(path)}:{node.lineno}: {node.func.attr} needs its reason"
            told = given[0].value if isinstance(given[0], ast.Constant) else None
            assert told is None or len(str(told)) > 8, f"{names(path)}:{node.lineno}: {told!r} is no reason"


def test_no_type_checker_is_silenced_where_none_reads() -> None:
    """A `type: ignore` in a file that neither mypy nor pyright checks exempts nothing."""
    for path in FILES:
        parts = path.relative_to(ROOT).parts
        if "tests" in parts and not {"cases", "bench"} & set(parts):
            assert not [at for at, comment in exemptions(path) if re.search("type:|mypy|pyright", comment)], names(path)
