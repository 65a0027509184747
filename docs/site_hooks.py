"""What mkdocs does in addition: pages and programs from outside of docs/, and links as a code host reads them.

The pages in docs/ are also read in the repository, so they link to files there: `../CHANGELOG.md`,
`../examples/04_fan_out.py`. These files become pages of the site, and the links to them lead there.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = sorted(path.name for path in ROOT.glob("*.md") if path.name != "README.md")
"""CHANGELOG.md and others. The site's home page takes the place of README."""

LANGUAGES = {".py": "python", ".html": "html"}
CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
ELSEWHERE = {
    "pregel_async.entrypoint": "pregel_async.functional.entrypoint.entrypoint",
    "pregel_async.task": "pregel_async.functional.task.task",
    "checkpoint_savers.MemorySaver": "checkpoint_savers.InMemorySaver",
}
"""Names whose entry has another path: a module of the same name hides the first two from a reader of the sources."""

INCLUDE = re.compile(r"(?<=^```python\n)# (examples/[\w/]+\.py)\n(?=```$)", re.MULTILINE)
NAMES = re.compile(r"^<!-- names of (\w+) -->$", re.MULTILINE)


def anchor(heading: str, separator: str) -> str:
    """Return a heading's anchor as code hosts make it, so that one link works in both places."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def page_of(path: str) -> str | None:
    """Return the page that shows a file or folder of the repository, or None if none does."""
    target = ROOT / path
    if path == "README.md":
        return "index.md"
    if path in ROOT_PAGES:
        return path.lower()
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("examples/") and target.is_dir():
        return f"{path.rstrip('/')}/README.md"
    if path.startswith("examples/") and target.suffix in LANGUAGES:
        return f"{path}.md"
    return path if path.startswith("examples/") else None


def source_of(page: str) -> str:
    """Return the file that a page shows: the inverse of `page_of`."""
    if page.startswith("examples/"):
        return page if page.endswith("README.md") else page.removesuffix(".md")
    return {name.lower(): name for name in ROOT_PAGES}.get(page, f"docs/{page}")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the root's pages to the last tab, and the anchors."""
    navigation: Any = config.nav
    [pages] = navigation[-1].values()
    pages.extend({name.removesuffix(".md").capitalize(): name.lower()} for name in ROOT_PAGES)
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make a page of each document at the root, and of each file of the examples."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name.lower(), abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / "examples").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.name == "README.md":
            files.append(File.generated(config, name, abs_src_path=str(path)))
        elif path.suffix in LANGUAGES and path.read_text("utf-8"):
            text = f"# {name}\n\n````{LANGUAGES[path.suffix]}\n{path.read_text('utf-8')}````\n"
            files.append(File.generated(config, f"{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between files of the repository to the pages that show them; include programs and lists of names."""
    here = page.file.src_uri
    folder = posixpath.dirname(source_of(here))

    def lead(found: re.Match[str]) -> str:
        target = page_of(posixpath.normpath(posixpath.join(folder, found[1])))
        return found[1] if target is None else posixpath.relpath(target, posixpath.dirname(here) or ".")

    parts = CODE.split(markdown)  # prose and code in turn
    parts[::2] = [LINK.sub(lead, NAMES.sub(lambda found: names_of(found[1]), prose)) for prose in parts[::2]]
    parts[1::2] = [INCLUDE.sub(lambda found: (ROOT / found[1]).read_text("utf-8"), code) for code in parts[1::2]]
    return "".join(parts)


def names_of(package: str) -> str:
    """Return links to the entries of all public names of a package."""
    tree = ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    ]
    paths = {name: f"{package}.{name}" for name in names}
    return ",\n".join(f"[`{name}`][{ELSEWHERE.get(path, path)}]" for name, path in paths.items()) + "."
