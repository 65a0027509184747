"""MODULE:GRAPH and MODULE:SERVICE: from the name on a command line to a graph that stores its threads, or a service."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.errors import annotate

from .._api.compiled import Graph
from ..graph import StateGraph
from ..service import RunService

UntypedGraph: TypeAlias = Graph[Any, Any]
UntypedBuilder: TypeAlias = StateGraph[Any]
Target: TypeAlias = UntypedGraph | UntypedBuilder | Callable[..., object]


class UsageError(Exception):
    """The command line is wrong, or does not fit the graph or thread that it names; nothing was run."""

    exit_code = 2


class NotStoredError(UsageError):
    """The requested thread or database does not exist."""

    exit_code = 1


def load(text: str) -> Target:
    """Import the object that MODULE:GRAPH names.

    MODULE is the name of a module, which is also searched in the working directory, or the path of a `.py` file. GRAPH
    is a builder, a compiled graph, or a function that returns one of them.

    Args:
        text: the name, as written on the command line.

    Returns:
        The builder, graph or function.

    Raises:
        UsageError: the module or name does not exist, or names an object of another kind.
        Exception: the module raised an exception while it was imported; it passes through with a note.
    """
    found = _find(text, "graph", (Graph, StateGraph))
    if isinstance(found, (Graph, StateGraph)) or inspect.isroutine(found):
        return cast("Target", found)
    raise UsageError(
        f"{text} is a {type(found).__name__}: name a StateGraph, a compiled graph, or a function that returns one"
    )


def load_service(text: str) -> RunService:
    """Import the service that MODULE:SERVICE names: a `RunService`, or a function without parameters that returns one.

    Args:
        text: the name, as written on the command line. MODULE is as for `load`.

    Returns:
        The service, not open.

    Raises:
        UsageError: the module or name does not exist, or names an object of another kind.
        Exception: the module or the function raised an exception.
    """
    # What a module prints while it is imported is not a command's output.
    with contextlib.redirect_stdout(sys.stderr):
        found = _find(text, "service", (RunService,))
        made = found() if inspect.isroutine(found) and not _needed(found) else found
    if isinstance(made, RunService):
        return made
    if inspect.iscoroutine(made):
        made.close()
    kind = "function with parameters" if inspect.isroutine(made) else type(made).__name__
    raise UsageError(
        f"{text} {'is' if made is found else 'returned'} a {kind}: name a RunService, or a function without parameters "
        "that returns one"
    )


def _find(text: str, what: str, kinds: tuple[type, ...]) -> object:
    """Return the object that MODULE:NAME names. The other arguments are for messages of errors."""
    name, colon, path = text.rpartition(":")
    if not colon or not name or not path:
        raise UsageError(
            f"{text!r} names no {what}: write MODULE:{what.upper()}, as in my_package.my_module:{what} or "
            f"file.py:{what}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import_file(Path(name)) if name.endswith(".py") else _import_module(name)
    try:
        return reduce(getattr, path.split("."), cast("Any", module))
    except AttributeError:
        known = [key for key, value in vars(module).items() if isinstance(value, kinds)]
        hint = f"; it has {', '.join(known)}" if known else ""
        raise UsageError(f"module {module.__name__!r} has no {path!r}{hint}") from None


def _needed(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function that have no default."""
    return [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def attach(target: Target, saver: BaseCheckpointSaver | None) -> UntypedGraph:
    """Return the graph, with `saver` in place of the checkpointer that it was compiled with.

    A function is called: without arguments, or with the saver if it has a parameter.

    Args:
        target: the builder, graph or function.
        saver: where the graph stores its threads; None if the graph is only inspected.

    Returns:
        A compiled graph.

    Raises:
        UsageError: a function takes other arguments, or does not return a graph.
    """
    if isinstance(target, StateGraph):
        return target.compile(saver)
    if isinstance(target, Graph):
        return target if saver is None else target.with_checkpointer(saver)
    return _call_factory(target, saver)


def _call_factory(make: Callable[..., object], saver: BaseCheckpointSaver | None) -> UntypedGraph:
    name = getattr(make, "__qualname__", repr(make))
    needed = _needed(make)
    if len(needed) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        raise UsageError(
            f"{name} takes {len(needed)} arguments: a function that returns a graph takes none, or the checkpointer"
        )
    made = make(saver) if needed else make()
    if isinstance(made, Graph) and needed:
        return made
    if isinstance(made, (Graph, StateGraph)):
        return attach(made, saver)
    if inspect.iscoroutine(made):
        made.close()
    raise UsageError(f"{name} returned a {type(made).__name__}, which is no graph")


def _import_module(name: str) -> ModuleType:
    if name.startswith(".") or not all(name.split(".")):
        raise UsageError(f"{name!r} is no module's name")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise UsageError(f"there is no module {missing!r}, in {os.getcwd()} or where Python looks") from None
        annotate(error, f"while importing {name}")
        raise
    except SystemExit:
        raise UsageError(
            f"importing {name} ended the program: what it runs as a script belongs under if __name__ == '__main__'"
        ) from None
    except Exception as error:
        annotate(error, f"while importing {name}")
        raise


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name that it has in its package, so that its relative imports work."""
    file = path.resolve()
    if not file.is_file():
        raise UsageError(f"there is no file {path}")
    parts = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = _import_module(".".join(parts))
    if module.__file__ is None or Path(module.__file__).resolve() != file:
        raise UsageError(
            f"{path} cannot be imported: another module has its name, {module.__name__!r}. Rename the file."
        )
    return module
