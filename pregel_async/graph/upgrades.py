"""Check the declared rules for what other versions of a graph's code have stored, and add them to its program.

`compile` loads this module only for graphs that declare such rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from msgspec import structs

from .._checks.options import CompileOptions, with_program_options
from .._core.fits import fits
from .._core.ownership import own
from .._core.program import BRANCH, NO_UPGRADES, Node, Program, Upgrades, no_writes
from ..errors import GraphValidationError
from ..types import END, Added, Migration, Renamed, Retyped, UnknownStored
from .specs import HANDLER, GraphSpec, marks_of


def with_upgrades(program: Program, builder: GraphSpec, options: CompileOptions) -> Program:
    """Return the program with the rules that a builder and the options of `compile` declare.

    Raises:
        GraphValidationError: a rule is invalid, or contradicts the graph or another rule.
    """
    program = with_program_options(program, options)  # migrations need its version
    nodes = _former_nodes(builder, options.get("retired"))
    dropped = _removed(builder, options.get("removed"))
    former, retyped, added = _marked_keys(builder)
    for name in dropped.intersection(former):
        raise GraphValidationError(f"removed names {name!r}, which is a former name of key {former[name]!r}")
    upgrades = Upgrades(
        dropped=dropped,
        former=former,
        retyped=retyped,
        added=added,
        aliases={old: _alias(program, old, now) for old, now in nodes.items()},
        nodes=nodes,
        steps=_migrations(program, options.get("migrations")),
        unknown_stored=_unknown(options.get("unknown", "warn")),
    )
    return program if upgrades == NO_UPGRADES else structs.replace(program, upgrades=upgrades)


def _migrations(program: Program, given: object) -> dict[int, Migration]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise GraphValidationError(f"migrations is a mapping of versions to functions, not {given!r}")
    listed: Mapping[Any, Any] = given
    for number, migration in listed.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 1 < number <= program.version:
            raise GraphValidationError(
                f"migrations has {number!r}: its keys are versions from 2 to the graph's, compile(version=), which is "
                f"{program.version or 'not given'}"
            )
        if not callable(migration):
            raise GraphValidationError(f"migrations[{number}] is a function of the stored state, not {migration!r}")
    return dict(sorted(listed.items()))


def _unknown(given: object) -> UnknownStored:
    if given not in get_args(UnknownStored):
        raise GraphValidationError(f"unknown is 'warn', 'error' or 'ignore', not {given!r}")
    return cast("UnknownStored", given)


def _removed(builder: GraphSpec, given: object) -> frozenset[str]:
    names = _names("removed", given)
    for name in names:
        if name in builder.channels:
            raise GraphValidationError(f"removed names {name!r}, which is a key of the graph: take the key out first")
    return frozenset(names)


def _marked_keys(builder: GraphSpec) -> tuple[dict[str, str], dict[str, Retyped], dict[str, Any]]:
    """Return what the marks in annotations declare: keys by former names, rules and values by key."""
    former: dict[str, str] = {}
    retyped: dict[str, Retyped] = {}
    added: dict[str, Any] = {}
    for key, mark in marks_of(builder):
        channel = builder.channels[key]
        if isinstance(mark, Added):
            if added.setdefault(key, mark.value) is not mark.value:
                raise GraphValidationError(f"key {key!r} has Added twice, with different values")
            if not fits(channel.typ, mark.value):
                raise GraphValidationError(f"key {key!r} has {mark!r}, which does not fit {channel.typ}")
            continue
        if isinstance(mark, Retyped):
            if not all(each is None or callable(each) for each in (cast("object", mark.convert), mark.update)):
                raise GraphValidationError(f"key {key!r} has {mark!r}, which takes functions of the stored value")
            if retyped.setdefault(key, mark) != mark:
                raise GraphValidationError(f"key {key!r} has Retyped twice, with different rules")
        was = mark.names if isinstance(mark, Renamed) else mark.was
        names = _names(f"the annotation of key {key!r}", (was,) if isinstance(was, str) else was)
        for old in names:
            if old in builder.channels or former.setdefault(old, key) != key:
                raise GraphValidationError(
                    f"key {key!r} names {old!r} as a former key, which is "
                    f"{'a key of the graph' if old in builder.channels else f'one of {former[old]!r} already'}"
                )
    return former, retyped, {key: own(value, key) for key, value in added.items()}


def _former_nodes(builder: GraphSpec, retired: object) -> dict[str, str]:
    """Return the present name of each renamed or retired node, by the former name; END for none."""
    found: dict[str, str] = {}

    def add(old: str, now: str, what: str) -> None:
        if old in builder.nodes:
            raise GraphValidationError(f"{what} names {old!r} as a former node, and the graph has that node")
        if old in found:
            raise GraphValidationError(f"{what} names {old!r}, which is declared to be {found[old]!r} already")
        found[old] = now

    for name, spec in builder.nodes.items():
        for old in _names(f"was of node {name!r}", spec.was):
            add(old, name, f"was of node {name!r}")
    if retired is not None and not isinstance(retired, Mapping):
        raise GraphValidationError(f"retired is a mapping of former nodes to nodes or END, not {retired!r}")
    for old, now in cast("Mapping[str, str]", retired or {}).items():
        if now != END and now not in builder.nodes:
            there = ", ".join(sorted(builder.nodes))
            raise GraphValidationError(
                f"retired hands {old!r} to {now!r}, and there is no such node; there are {there}"
            )
        add(old, now, "retired")
    return found


def _alias(program: Program, old: str, now: str) -> Node:
    """Return the node that runs pending tasks of a former node."""
    trigger = BRANCH + old
    if now == END:
        return Node(name=old, triggers=(trigger,), reads=(), call=no_writes, flavour="inline", writes=no_writes)
    node = program.nodes[now]
    # A run under a former name is the run for triggers under the other names too; see `superstep.plan`.
    others = [*node.triggers, *[BRANCH + each for each in node.was]] if old in node.was else []
    handler = node.handler
    if handler is not None and handler.name == HANDLER + now:
        handler = structs.replace(handler, identity=HANDLER + old)
    return structs.replace(node, identity=old, triggers=tuple(sorted({trigger, *others})), handler=handler)


def _names(what: str, given: object) -> tuple[str, ...]:
    """Return names that were given as a sequence; none for None. Raises `GraphValidationError`."""
    if given is None:
        return ()
    names = cast("tuple[object, ...]", tuple(given) if isinstance(given, Iterable) else (given,))
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in names):
        raise GraphValidationError(f"{what} is a sequence of names, not {given!r}")
    return cast("tuple[str, ...]", names)
