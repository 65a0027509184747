"""The built site: every public name has an entry, every link leads somewhere, nothing is loaded from elsewhere.

`nox -s docs` builds the site and says where it is (PREGEL_SITE). mkdocs has checked the links of the texts by then; these
tests read what a browser reads. They need no package but pytest.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import zlib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("PREGEL_SITE", ROOT / "no site"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

built = pytest.mark.skipif(not SITE.is_dir(), reason="reads the built site: run `nox -s docs`")

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
}
"""The attributes from which a browser loads something by itself; of `<link>`, only some relations do."""

PASSIVE = {"canonical", "prev", "next", "alternate", "author", "license"}


class Reader(HTMLParser):
    """What a page links to, what it loads, its anchors, and its paragraphs."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self._in_code = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in PASSIVE:
            self.loads.append(given["href"])
        elif given.get(LOADS.get(tag, "")):
            self.loads.append(given[LOADS[tag]])
        self._in_code += tag == "code"
        if tag == "p":
            self._in_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_code -= tag == "code"
        if tag == "p":
            self._in_paragraph = False

    def handle_data(self, data: str) -> None:
        if self._in_paragraph and not self._in_code:
            self.paragraphs[-1] += data


@cache
def read(page: Path) -> Reader:
    return Reader(page.read_text("utf-8"))


def pages() -> list[Path]:
    return sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")


def lost(page: Path, link: str) -> bool:
    """Return True if a link leads to no file, or to no anchor of a page."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target.is_dir() or not target.exists():
        return True
    return target.suffix == ".html" and bool(parts.fragment) and unquote(parts.fragment) not in read(target).anchors


def unrendered(paragraph: str) -> bool:
    """Return True if a paragraph has lists, tables or fences that were not recognised as such."""
    return re.search(r"^\s*(?:[-*|] |\d+\. |```|--8<--|:::)|\]\(|\]\[", paragraph, re.MULTILINE) is not None


def public_modules() -> list[str]:
    """Return the modules from which users import, as docs/architecture.md names them; and both packages."""
    text = " ".join((ROOT / "docs" / "architecture.md").read_text("utf-8").split())
    savers = text.partition("Of `checkpoint_savers`, import from the package itself, ")[2].partition(";")[0]
    inside = sorted({path.stem for path in (ROOT / "pregel_async").iterdir() if path.stem[0] not in "_."})
    return [
        "pregel_async",
        *(f"pregel_async.{name}" for name in inside if name != "py"),
        "checkpoint_savers",
        *(f"checkpoint_savers.{name}" for name in re.findall(r"`(\w+)`", savers)),
    ]


def names_of(module: str) -> list[str]:
    """Return the public names of a module: `__all__`, or its public classes and functions with a docstring."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text("utf-8"))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if [target.id for target in targets if isinstance(target, ast.Name)] == ["__all__"]:
            assert isinstance(node, ast.Assign)
            return list(ast.literal_eval(node.value))
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return [node.name for node in found if ast.get_docstring(node) is not None]


def inventory() -> set[str]:
    """Return the names that have an entry in the reference, as other projects' documentation finds them."""
    *_, body = (SITE / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.split(" ")[0] for line in zlib.decompress(body).decode().splitlines()}


@built
def test_every_public_name_has_an_entry() -> None:
    """Users look a name up under the path from which they import it."""
    entries = inventory()
    aliases = {"checkpoint_savers.MemorySaver": "checkpoint_savers.memory.InMemorySaver"}
    missing: list[str] = []
    for module in public_modules():
        for name in names_of(module):
            full = f"{module}.{name}"
            # A function in a module of its name: the module hides it from a reader of the sources.
            own = {f"{base}.{name}.{name}" for base in (module, f"{module}.functional")}
            if not entries & {full, aliases.get(full, full), *own}:
                missing.append(full)
    assert len(entries) > 1000
    assert missing == []


@built
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(SITE)))
def test_a_page_leads_somewhere_and_needs_no_network(page: Path) -> None:
    """Each link has its file and its anchor, and what a page loads is in the site. Markdown was read as it was meant."""
    reader = read(page)
    assert [link for link in reader.links if lost(page, link)] == []
    assert [load for load in reader.loads if "//" in load or lost(page, load)] == []
    assert [text for text in reader.paragraphs if unrendered(text)] == []


@built
def test_styles_load_nothing_from_elsewhere() -> None:
    sheets = [path.read_text("utf-8") for path in SITE.rglob("*.css")]
    assert sheets
    assert [
        url for sheet in sheets for url in re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)\"']*", sheet)
    ] == []


@built
@pytest.mark.skipif(CHROMIUM is None, reason="searches in Chromium, which is not installed")
@pytest.mark.parametrize(("word", "page"), [("RetryPolicy", "reference/policies.html"), ("refund", "tutorial/")])
def test_the_search_works_from_the_disk(word: str, page: str, tmp_path: Path) -> None:
    """A reader without a server finds names of the reference and words of the texts."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    command += ["--virtual-time-budget=20000", f"{(SITE / 'index.html').as_uri()}?q={word}"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    results = re.findall(r'<a href="([^"]+)" class="md-search-result__link"', dom)
    assert any(page in result for result in results), results


@pytest.mark.parametrize(
    ("link", "expected"),
    [("b.html", False), ("b.html#there", False), ("https://example.org", False), ("c.html", True), ("b.html#x", True)],
)
def test_a_lost_link_is_found(link: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h2 id="there">There</h2>')
    assert lost(tmp_path / "a.html", link) is expected


@pytest.mark.parametrize("text", ["see:\n- a list", "| a | b |\n", "a [link](x.md)", "a [name][pregel_async.Nothing]"])
def test_unrendered_text_is_found(text: str) -> None:
    assert unrendered(text)
    assert not unrendered("A sentence - with a dash, `a[1](2)` left out, and 3 numbers.".replace("`a[1](2)`", ""))


def test_what_is_loaded_is_found() -> None:
    page = Reader('<link rel="stylesheet" href="//x/y.css"><script src="z.js"></script><a href="//x">x</a>')
    assert (page.loads, page.links) == (["//x/y.css", "z.js"], ["//x"])
