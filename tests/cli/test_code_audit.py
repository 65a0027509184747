"""The analysis of the main example on difficult sources, and the whole job on a small tree."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from examples.code_audit import ranking, sources
from examples.code_audit.audit import FileAudit, Function, audit
from examples.code_audit.graph import builder


def audited(source: str | bytes, path: str = "module.py") -> FileAudit:
    return audit(path, dedent(source).encode() if isinstance(source, str) else source)


def unused(source: str, path: str = "module.py") -> list[str]:
    result = audited(source, path)
    assert result.problem is None, result.problem
    return [place.name for place in result.unused]


USED = {
    "a plain use": "import os\nos.getcwd()",
    "a use in a function, before the import": "def f():\n    return os\nimport os",
    "a submodule, reached by its package": "import os.path\nos.path.join",
    "another submodule of a package that is used": "import xml.dom, xml.sax\nxml.dom",
    "a submodule, reached by another name": "import concurrent as c\nimport concurrent.futures\nc.futures",
    "a new name": "import numpy as np\nnp.zeros",
    "a deletion": "import sys\ndel sys",
    "a base class": "from abc import ABC\nclass A(ABC): pass",
    "a decorator": "import functools\n@functools.cache\ndef f(): pass",
    "a default": "import os\ndef f(x=os.sep): pass",
    "an annotation": "from typing import Any\ndef f(x: Any): pass",
    "a quoted annotation": "from typing import Any\ndef f(x: 'list[Any]') -> None: pass",
    "a quoted result": "from decimal import Decimal\ndef f() -> 'Decimal | None': pass",
    "a quoted variable": "from decimal import Decimal\nx: 'Decimal'",
    "a quoted part": "from decimal import Decimal\ndef f(x: list['Decimal']): pass",
    "a quoted alias": "from typing import Optional\nfrom decimal import Decimal\nX = Optional['Decimal']",
    "a cast": "from typing import cast\nfrom decimal import Decimal\ncast('Decimal', 1)",
    "a bound": "import typing\nfrom decimal import Decimal\nT = typing.TypeVar('T', bound='Decimal')",
    "under TYPE_CHECKING": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from decimal import Decimal\ndef f(x: Decimal): pass"
    ),
    "a type comment": "from typing import List\nx = []  # type: List[int]",
    "a pattern": "from enum import Enum\ndef f(x):\n    match x:\n        case Enum(): pass",
    "a doctest": "import math\ndef f():\n    '''\n    >>> math.pi\n    3.14\n    '''",
    "__all__": "from os import sep\n__all__ = ['sep']",
    "__all__, a tuple": "from os import sep\n__all__ = ('sep',)",
    "__all__, added to": "from os import sep, linesep\n__all__ = []\n__all__ += ['sep']\n__all__.append('linesep')",
    "__all__, extended": "from os import sep\n__all__ = []\n__all__.extend(['sep'])",
    "__all__, a sum": "from os import sep\n__all__ = ['x'] + ['sep']",
    "__all__, annotated": "from os import sep\n__all__: list[str] = ['sep']",
    "__all__, made when it runs": "import mine\nfrom mine import thing\n__all__ = [n for n in dir() if n[0] != '_']",
    "__all__, of another module": "from . import mine\nfrom .mine import thing\n__all__ = mine.__all__ + ['x']",
    "a future": "from __future__ import annotations",
    "a star": "from os import *",
    "a re-export": "import os as os\nfrom sys import path as path",
    "a public face": "from _struct import Struct, pack",
    "the module's own documentation": "from struct import __doc__, __all__",
    "a probe": "try:\n    import fast\nexcept ImportError:\n    fast = None",
    "a probe of any kind": "try:\n    import fast\nexcept:\n    pass",
    "a probe of two kinds": "try:\n    import fast\nexcept (ValueError, ModuleNotFoundError):\n    pass",
    "a suppressed probe": "import contextlib\nwith contextlib.suppress(ImportError):\n    import readline",
    "a class attribute": "class A:\n    from os import sep",
    "globals()": "import os\nglobals()['os']",
    "locals()": "def f():\n    import os\n    return locals()",
    "eval": "import os\neval('os')",
    "noqa": "import os  # noqa",
    "noqa with its code": "import os  # NOQA: E501, F401",
    "noqa on its line": "from os import (\n    sep,  # noqa: F401\n)",
    "a global": "def f():\n    global os\n    import os",
}

NOT_USED = {
    "import os": ["import os"],
    "import os.path": ["import os.path"],
    "import os as system": ["import os as system"],
    "from os import sep as separator": ["from os import sep as separator"],
    "from . import other\nfrom ..more import one, two\none": ["from . import other", "from ..more import two"],
    "import os, sys\nos": ["import sys"],
    "import os\nos = 3": ["import os"],
    "import os\nx.os": ["import os"],
    "import os\n'os'": ["import os"],
    "def f():\n    import os": ["import os"],
    "if x:\n    import os\nelse:\n    import sys": ["import os", "import sys"],
    "try:\n    import os\nexcept ValueError:\n    pass": ["import os"],
    "try:\n    def f():\n        import os\nexcept ImportError:\n    pass": ["import os"],
    "import os  # noqa: E501": ["import os"],
    "from os import sep\n__all__ = ['other']": ["from os import sep"],
    "import os\neval('os', {})": ["import os"],
    "if typing.TYPE_CHECKING:\n    from decimal import Decimal": ["from decimal import Decimal"],
}


@pytest.mark.parametrize("source", USED.values(), ids=USED.keys())
def test_what_may_be_used_is_not_accused(source: str) -> None:
    assert unused(source) == []


@pytest.mark.parametrize(("source", "names"), NOT_USED.items())
def test_what_nothing_uses_is_found(source: str, names: list[str]) -> None:
    assert unused(source) == names


def test_a_packages_init_re_exports() -> None:
    """An `__init__` module re-exports at its top level, and not in functions."""
    source = "from .a import b\nif x:\n    import c\ndef f():\n    import d"
    assert unused(source, "package/__init__.py") == ["import d"]
    assert unused(source, "package/init.py") == ["from .a import b", "import c", "import d"]


def test_imports_have_their_lines() -> None:
    """Each name in a multi-line import is reported with its own line."""
    result = audited("from os import (\n    sep,\n    linesep,\n)\nimport sys\nlinesep")
    assert [(place.line, place.name) for place in result.unused] == [(2, "from os import sep"), (5, "import sys")]


def test_this_repository_has_no_unused_import() -> None:
    """The audit agrees with ruff: it reports no unused import in this repository."""
    root = Path(__file__).parents[2]
    found = {
        f"{folder}/{path}": result.unused
        for folder in ("pregel_async", "checkpoint_savers", "examples")
        for path in sources.find(root / folder)
        if (result := audit(path, (root / folder / path).read_bytes())).unused
    }
    assert found == {}


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("pass", 1),
        ("if a: pass", 2),
        ("if a: pass\n    elif b: pass\n    else: pass", 3),
        ("for x in y: pass\n    else: pass", 2),
        ("while a: pass", 2),
        ("return a if b else c", 2),
        ("return a and b and c", 3),
        ("return a or b and c", 3),
        ("return [x for x in y if x if z]", 4),
        ("return {x: 1 for x in y for z in x}", 3),
        ("try: pass\n    except A: pass\n    except B: pass\n    finally: pass", 3),
        ("with a as b: pass", 1),
        ("assert a", 1),
        ("return lambda: a if b else c", 2),
        ("match a:\n        case 1: pass\n        case x if x: pass\n        case _: pass", 3),
        ("return a if b else c\n    def g(): pass", 2),
        ("class A:\n        x = 1 if a else 2", 1),
    ],
)
def test_complexity_counts_the_places_where_the_path_forks(body: str, complexity: int) -> None:
    result = audit("module.py", f"async def f():\n    {body}\n".encode())
    assert result.problem is None
    assert result.worst == Function(1, "f", complexity)


def test_the_worst_function_is_named_with_its_scope() -> None:
    """Of several equal functions the first is named."""
    result = audited("""
        class A:
            class B:
                def f(self):
                    def g():
                        return 1 if x else 2
                def h(self):
                    return 1 if x else 2
    """)
    assert (result.functions, result.classes) == (3, 2)
    assert result.worst == Function(5, "A.B.f.g", 2)


def undocumented(source: str, path: str = "module.py") -> list[str]:
    return [place.name for place in audited(source, path).undocumented]


def test_public_things_want_a_docstring() -> None:
    assert undocumented("""
        def f(): pass
        async def g(): 'yes'
        def _private(): pass
        class A:
            def method(self):
                def inner(): pass
            def __init__(self): pass
            @property
            def p(self): pass
            @p.setter
            def p(self, value): pass
            @typing.overload
            def o(self): ...
            @override
            def v(self): pass
            class Inner: pass
        class _B:
            def method(self): pass
        if windows:
            def h(): pass
        else:
            def h(): 'yes'
        try:
            import x
        except ImportError:
            def k(): pass
    """) == ["the module", "f", "A", "A.method", "A.p", "A.Inner", "k"]


def test_all_says_what_is_public() -> None:
    assert undocumented("'doc'\n__all__ = ['_a']\ndef _a(): pass\ndef b(): pass") == ["_a"]
    assert undocumented("'doc'\n__all__ = make()\ndef _a(): pass\ndef b(): pass") == ["b"]


@pytest.mark.parametrize("path", ["_private.py", "_package/module.py", "package/_private.py"])
def test_in_a_private_module_nothing_is_public(path: str) -> None:
    assert undocumented("def f(): pass", path) == []


@pytest.mark.parametrize("path", ["package/__init__.py", "package/__main__.py"])
def test_an_empty_file_needs_no_docstring(path: str) -> None:
    assert undocumented("", path) == []
    assert undocumented("x = 1", path) == ["the module"]


def nested(*lines: str) -> bytes:
    return "\n".join(lines).encode()


HARD: dict[str, tuple[bytes, str | None]] = {
    "nothing": (b"", None),
    "a byte order mark": (b"\xef\xbb\xbfimport os\nos", None),
    "another encoding": (b"# -*- coding: latin-1 -*-\nx = '\xe9'", None),
    "old line ends": (b"import os\rimport sys\ros, sys\r", None),
    "form feeds": (b"import os\n\x0cdef f(): pass\nos", None),
    "bad escapes": (b"x = '\\d'\nassert (1, '2')\nx is 1", None),
    "a long elif": (nested("if a: pass", *(f"elif a{n}: pass" for n in range(900))), None),
    "bad UTF-8": (b"x = '\xe9'", "codec can't decode"),
    "an unknown encoding": (b"# coding: nonsense", "nonsense"),
    "an encoding that is no text": (b"# coding: rot13\nx", "rot13"),
    "a forbidden encoding": (b"# coding: undefined\nx", "undefined"),
    "a null": (b"x = '\0'", "null bytes"),
    "Python 2": (b"\nprint 'x'", "line 2: Missing parentheses"),
    "half a file": (b"def f(:", "line 1: "),
    "bad indentation": (b"if x:\n  y\n z", "line 3: "),
    "noise": (bytes(range(256)) * 40, ""),
    "many signs": (b"-" * 100_000 + b"1", "nested too deeply"),
    "many attributes": (b"a" + b".b" * 100_000, "nested too deeply"),
    "a long sum": (b"+".join([b"1"] * 100_000), "nested too deeply"),
    "many brackets": (b"(" * 5000, "line 1: "),
    "many calls": (b"f" + b"()" * 100_000, "nested too deeply"),
    "a very long elif": (nested("if a: pass", *(f"elif a{n}: pass" for n in range(20_000))), "nested too deeply"),
}


@pytest.mark.parametrize(("data", "problem"), HARD.values(), ids=HARD.keys())
def test_whatever_is_in_a_file_becomes_a_fact(data: bytes, problem: str | None) -> None:
    """Any content of a file becomes a fact, never an exception, a warning or a crash, also in a worker thread with a
    smaller stack."""
    found: list[FileAudit] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=lambda: found.append(audit("module.py", data)))
        thread.start()
        thread.join()
    (result,) = found
    if problem is None:
        assert result.problem is None
        assert result.unused == ()
    else:
        assert result.problem is not None
        assert problem in result.problem
        assert result.lines == len(data.splitlines())


def tree(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("import os\n")
    return root


def test_files_are_found_in_an_order_of_their_own(tmp_path: Path) -> None:
    """Files are ordered by the parts of their paths; third-party code and tests are skipped unless requested."""
    paths = [
        "b.py",
        "a/z.py",
        "a-b.py",
        "a/tests/t.py",
        "site-packages/s.py",
        "env/pyvenv.cfg",
        "env/lib/e.py",
        "no.txt",
    ]
    root = tree(tmp_path, *paths)
    assert sources.find(root) == ["a/z.py", "a-b.py", "b.py"]
    assert sources.find(root, []) == ["a/tests/t.py", "a/z.py", "a-b.py", "b.py", "env/lib/e.py", "site-packages/s.py"]
    assert sources.find(root, ["a"]) == ["a-b.py", "b.py", "site-packages/s.py"]
    with pytest.raises(OSError, match="nowhere"):
        sources.find(root / "nowhere")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither links for everybody nor named pipes")
def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """Pipes, which would never end, and links to folders, which may form cycles, are not opened."""
    root = tree(tmp_path, "a.py")
    os.mkfifo(root / "pipe.py")
    os.symlink("nowhere", root / "broken.py")
    os.symlink(".", root / "loop")
    (root / "folder.py").mkdir()
    assert sources.find(root) == ["a.py"]


def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, "a.py")
    assert sources.read(root / "a.py") == b"import os\n"
    monkeypatch.setattr(sources, "LARGEST", 9)
    with pytest.raises(sources.TooLarge):
        sources.read(root / "a.py")


def test_a_score_is_the_sum_of_its_parts() -> None:
    """Each point of the score names its reason, and every part is explained."""
    result = audited("import os\n" * 3 + "def f():\n" + "    if x: pass\n" * 14 + "\n" * 600)
    ranked = ranking.score(result)
    assert ranked.why == {"complexity": 5.0, "size": 2.4, "documentation": 1.0, "imports": 6.0}
    assert ranked.score == 14.4
    assert {what for what, _ in ranking.EXPLAINED} >= ranked.why.keys()
    assert ranking.score(audited(b"\0")).why == {"unreadable": 50.0}


def test_the_worst_come_first_and_equals_by_name() -> None:
    audits = [audited("import os", f"{name}.py") for name in "ba"] + [audited("import os, sys"), audited("'fine'")]
    assert [item.path for item in ranking.rank(audits, 10)] == ["module.py", "a.py", "b.py"]
    assert [item.path for item in ranking.rank(audits, 1)] == ["module.py"]
    assert ranking.rank(audits, 0) == []


def sample(root: Path) -> Path:
    for name, (data, _) in HARD.items():
        (root / f"{name.replace(' ', '_')}.py").write_bytes(data)
    tree(root, "package/module.py", "tests/skipped.py", "pi|pe.py")
    if sys.platform == "linux":
        (root / os.fsdecode(b"byte\xff.py")).write_text("import os\n")
    return root


@pytest.mark.anyio
async def test_the_report_is_the_same_for_the_same_tree(tmp_path: Path) -> None:
    """The report is the same byte for byte on both event loops, with and without storage, and for any concurrency."""
    root = sample(tmp_path)
    texts: list[bytes] = []
    async with SqliteSaver.from_conn_string(":memory:") as saver:
        for number, (checkpointer, width) in enumerate([(None, None), (InMemorySaver(), 1), (saver, 3)]):
            target = tmp_path / f"{number}.md"
            config: Any = {"configurable": {"thread_id": "t"}, "max_concurrency": width}
            graph = builder.compile(checkpointer)
            result = await graph.ainvoke({"root": str(root), "report": str(target)}, config)
            assert result["report"] == str(target)
            assert result.keys() == {"report", "totals", "worst"}
            texts.append(target.read_bytes())
    assert texts[0] == texts[1] == texts[2]
    text = texts[0].decode()
    assert "tests/skipped.py" not in text
    assert "- `package/module.py:1`: `import os`" in text
    assert "| `pi\\|pe.py` |" in text
    for name, (_, problem) in HARD.items():
        assert (f"- `{name.replace(' ', '_')}.py`: " in text.partition("### Functions")[0]) is (problem is not None)
    assert "```mermaid\nflowchart TD\n" in text
    assert not list(tmp_path.glob(".audit-*"))


@pytest.mark.anyio
async def test_a_second_audit_on_a_thread_is_of_its_own_tree(tmp_path: Path) -> None:
    """The first audit's data in the thread does not affect the second one's report."""
    graph = builder.compile(InMemorySaver())
    one, two = tree(tmp_path / "one", "same.py", "only.py"), tree(tmp_path / "two", "same.py")
    (two / "same.py").write_text("'fine'\n")
    target = str(tmp_path / "report.md")
    first = await graph.ainvoke({"root": str(one), "report": target}, "t")
    second = await graph.ainvoke({"root": str(two), "report": target}, "t")
    assert (first["totals"].files, first["totals"].unused_imports) == (2, 2)
    assert (second["totals"].files, second["totals"].unused_imports) == (1, 0)


@pytest.mark.anyio
async def test_a_tree_may_be_empty_or_a_single_file(tmp_path: Path) -> None:
    """A missing tree raises a specific error."""
    graph = builder.compile()
    target = str(tmp_path / "new" / "report.md")
    (tmp_path / "empty").mkdir()
    assert (await graph.ainvoke({"root": str(tmp_path / "empty"), "report": target}))["totals"].files == 0
    assert "None: no file has a point." in Path(target).read_text()
    file = tree(tmp_path, "one.py") / "one.py"
    assert [item.path for item in (await graph.ainvoke({"root": str(file), "report": target}))["worst"]] == ["one.py"]
    with pytest.raises(FileNotFoundError) as raised:
        await graph.ainvoke({"root": str(tmp_path / "nowhere"), "report": target})
    assert "list_files" in raised.value.__notes__[0]


@pytest.mark.anyio
async def test_a_file_that_is_gone_before_its_turn_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "find", lambda root, skip: ["gone.py", "here.py"])
    target = tree(tmp_path, "here.py") / "report.md"
    result = await builder.compile().ainvoke({"root": str(tmp_path), "report": str(target)})
    assert (result["totals"].files, result["totals"].not_analysed) == (2, 1)
    assert "- `gone.py`: cannot be read: No such file or directory" in target.read_text()
