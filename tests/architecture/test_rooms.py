"""Folders and imports: no circle, no crowded folder, and public, internal and shared modules each in their place."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("pregel_async", "checkpoint_savers")
MODULES = {
    ".".join(parts[:-1] if parts[-1] == "__init__" else parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    for parts in [path.relative_to(ROOT).with_suffix("").parts]
}
PUBLIC = {
    "pregel_async": {
        "adapters",
        "channels",
        "cli",
        "drawing",
        "errors",
        "functional",
        "from_langgraph",
        "graph",
        "langchain",
        "managed",
        "messages",
        "node",
        "observing",
        "otel",
        "parts",
        "policies",
        "prebuilt",
        "pregel",
        "pytest_plugin",
        "runtime",
        "serve",
        "service",
        "testing",
        "types",
        "ui",
        "versions",
    },
    "checkpoint_savers": {
        "abc",
        "caches",
        "codec",
        "conformance",
        "errors",
        "metadata",
        "owner",
        "records",
        "saver_port",
        "stores",
        "upkeep",
    },
}
"""The modules and folders right inside of the packages that users may import from. What is deeper inside is internal, but
for `DEEPER`. In `pregel_async`, what is internal and right inside has an underscore."""

DEEPER = {
    "pregel_async.channels.laws",
    "pregel_async.prebuilt.mcp",
    "pregel_async.prebuilt.supervisor",
    "pregel_async.prebuilt.swarm",
}

PLACES = {*PACKAGES, *DEEPER, *(f"{package}.{name}" for package in PACKAGES for name in PUBLIC[package])}
TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
IMPORT = re.compile(r"^ *(?:from|import) ((?:pregel_async|checkpoint_savers)[\w.]*)", re.MULTILINE)


def imported(name: str) -> set[str]:
    """The modules that a module imports: at the top, in functions, and for type checkers."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
            if not all(f"{base}.{alias.name}" in MODULES for alias in node.names):
                found.add(base)
    return (found & MODULES.keys()) - {name}


def circles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that are in a circle of imports, or between two."""
    left = dict(imports)
    while ends := {name for name, others in left.items() if not others & left.keys()} | (
        left.keys() - {other for name in left for other in left[name]}
    ):
        for name in ends:
            del left[name]
    return set(left)


def test_no_circle_of_imports() -> None:
    """Imports in functions and under TYPE_CHECKING count: they only hide a circle."""
    assert not circles({name: imported(name) for name in MODULES})


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"a", "c"}, "c": set(), "d": {"a"}}) == {"a", "b"}


def test_no_folder_is_crowded() -> None:
    """At most 25 modules, so that a folder can be read at a glance."""
    sizes = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > 25} == {}


def test_folders_of_tests_share_only_helpers() -> None:
    """What several folders of tests use is in tests/helpers, and each folder is a package."""
    used: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        if not {"project", "cases"} & set(path.parts):  # programs that tests run
            assert (path.parent / "__init__.py").is_file(), path
            folder = path.relative_to(ROOT / "tests").parts[0]
            others = set(re.findall(r"^ *from tests\.(\w+)", path.read_text("utf-8"), re.MULTILINE))
            if strange := others - {folder, "helpers"}:
                used[str(path.relative_to(ROOT))] = strange
    assert used == {}


def test_public_modules_are_told_from_internal_ones_by_their_place() -> None:
    """Right inside of `pregel_async` is public, unless it has an underscore. docs/architecture.md says the same of both."""
    inside = {name.split(".")[1] for name in MODULES if name.startswith("pregel_async.")}
    assert {name for name in inside if not name.startswith("_")} == PUBLIC["pregel_async"]
    assert PLACES <= MODULES.keys()
    text = " ".join((ROOT / "docs" / "architecture.md").read_text("utf-8").split())
    savers = text.partition("Of `checkpoint_savers`, import from the package itself, ")[2].partition(";")[0]
    assert set(re.findall(r"`(\w+)`", savers)) == PUBLIC["checkpoint_savers"]


def test_docs_and_examples_import_only_what_is_public() -> None:
    """What users are shown is what they may rely on."""
    shown = {(path, name) for path in TEXTS for name in IMPORT.findall(path.read_text("utf-8"))}
    assert len({name for _, name in shown}) > 15
    assert {(str(path.relative_to(ROOT)), name) for path, name in shown if name not in PLACES} == set()


def test_the_contracts_name_every_layer_of_the_kernel() -> None:
    """The kernel imports none of what stores threads: this contract lists the modules that the layers list, without what is
    around the kernel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    contracts = {contract["id"]: contract for contract in settings["contracts"]}
    around, kernel = contracts["layers"]["layers"][:4], contracts["layers"]["layers"][4:]
    assert around == [
        "pytest_plugin",
        "cli | prebuilt",
        "serve | testing | adapters | drawing | otel | langchain | from_langgraph",
        "service",
    ]
    listed = [f"pregel_async.{name}" for layer in kernel for name in re.split(" [|:] ", layer)]
    assert sorted(listed) == sorted(contracts["port-only"]["source_modules"])
    assert all(contract.get("exhaustive") for contract in contracts.values() if contract["type"] == "layers")
