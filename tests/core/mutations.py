"""Values of every kind that counts as data, and random programs that change them in place.

A program runs on two values at once: on the copy that `isolate` returned, and on a deep copy, which shows what a node
expects. Each instruction picks an object obtained so far and applies one Python operation to it: take, store, sort,
unpack.
"""

# ruff: noqa: RUF005, C416, C417  # each way to do a thing is one of the things to try

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pydantic
from hypothesis import strategies as st

from pregel_async._core.isolation import CopiedDict, CopiedList, IsolatedDict, IsolatedList


@dataclasses.dataclass
class Point:
    x: Any = None
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any = None


class Record(msgspec.Struct):
    x: Any = None
    y: Any = None


class FrozenRecord(msgspec.Struct, frozen=True):
    x: Any = None


class Model(pydantic.BaseModel):
    x: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any


OldPair = namedtuple("OldPair", "left right")


class Names(list[Any]):
    """A user-defined subclass of list."""


class Table(dict[Any, Any]):
    """A user-defined subclass of dict."""


class Noted(msgspec.Struct, dict=True):
    x: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Noted:
        made = Noted(copy.deepcopy(self.x, memo))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


class FrozenNoted(msgspec.Struct, frozen=True, dict=True):
    x: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenNoted:
        made = FrozenNoted(copy.deepcopy(self.x, memo))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


class Queue(deque[Any]):
    """A user-defined subclass of deque."""


class Groups(defaultdict[Any, Any]):
    """A user-defined subclass of defaultdict."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Groups:
        made = Groups(self.default_factory, copy.deepcopy(dict(self), memo))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made


class Sorted(OrderedDict[Any, Any]):
    """A user-defined subclass of OrderedDict."""


class Members(set[Any]):
    """A user-defined subclass of set."""


class Slots(list[Any]):
    """A user-defined subclass of list that stores its attribute in a slot."""

    __slots__ = ("extra",)


class Row(tuple[Any, ...]):
    """A user-defined subclass of tuple."""


class Named(Pair):
    """A subclass of a named tuple; its instances have a `__dict__`."""


def carrying(value: Any, extra: Any) -> Any:
    """Return the value with an attribute in addition to its fields or elements."""
    if isinstance(value, msgspec.Struct):
        value.__dict__["extra"] = extra
    else:
        object.__setattr__(value, "extra", extra)
    return value


atoms: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 1.0, 2.5, "", "a", b"", b"x"]),
    st.integers(-3, 3),
    st.text("ab", max_size=2),
)
keys: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["a", "b", "c"]), st.sampled_from([0, 1, True, None, (1, "t")])
)


def _more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        plain_more(inner),
        st.frozensets(st.integers(0, 3), max_size=2),
        st.sets(st.integers(0, 5), max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.lists(inner, max_size=3).map(Names),
        st.dictionaries(keys, inner, max_size=3).map(Table),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(lambda given: defaultdict(list, given)),
        st.dictionaries(keys, st.integers(0, 3), max_size=3).map(Counter),
        st.binary(max_size=3).map(bytearray),
        st.builds(Point, inner, inner),
        st.builds(Frozen, inner),
        st.builds(Slotted, inner),
        st.builds(Record, inner, inner),
        st.builds(FrozenRecord, inner),
        st.builds(Model, x=inner),
        st.builds(Pair, inner, inner),
        st.builds(OldPair, inner, inner),
        st.builds(carrying, _carriers(inner), inner),
    )


def _carriers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects that may carry attributes in addition to their fields or elements."""
    few, mappings = st.lists(inner, max_size=2), st.dictionaries(keys, inner, max_size=2)
    return st.one_of(
        st.builds(Point, inner),
        st.builds(Frozen, inner),
        st.builds(Noted, inner),
        st.builds(FrozenNoted, inner),
        few.map(Names),
        few.map(Slots),
        few.map(Queue),
        few.map(Row),
        st.sets(st.integers(0, 5), max_size=2).map(Members),
        mappings.map(Table),
        mappings.map(Sorted),
        mappings.map(lambda given: Groups(list, given)),
        st.builds(Named, inner, inner),
    )


def plain_more(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4))


values = st.recursive(atoms, _more, max_leaves=12)
"""Any data."""

plain_values = st.recursive(atoms, plain_more, max_leaves=12)
"""Lists and dicts only, as json has them."""

states = st.dictionaries(st.sampled_from("abcd"), values, min_size=1, max_size=4)
plain_states = st.dictionaries(st.sampled_from("abcd"), plain_values, min_size=1, max_size=4)


def shape(value: Any) -> Any:
    """Describe a value by types and parts, so that True and 1, a list and a tuple, or two classes never compare
    equal."""
    kind: Any = type(value)
    kind = {IsolatedDict: dict, CopiedDict: dict, IsolatedList: list, CopiedList: list}.get(kind, kind)
    if (extra := carried_by(value)) is not _NONE:
        kind = (kind, shape(extra))
    if isinstance(value, dict):
        return kind, [(shape(key), shape(item)) for key, item in dict.items(value)]
    if isinstance(value, list):
        return kind, [shape(item) for item in list.__getitem__(value, slice(None))]
    if isinstance(value, (tuple, deque)):
        return kind, [shape(item) for item in value]
    if isinstance(value, (set, frozenset, bytearray)):
        return kind, sorted(value)
    fields = fields_of(value)
    return (kind, [(name, shape(getattr(value, name))) for name in fields]) if fields else (kind, value)


_NONE = object()


def carried_by(value: Any) -> Any:
    """Return the attribute that `carrying` set."""
    return getattr(value, "extra", _NONE)


def fields_of(value: Any) -> list[str]:
    if isinstance(value, (Point, Frozen, Slotted)):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, (Record, FrozenRecord, Noted, FrozenNoted)):
        return list(value.__struct_fields__)
    return ["x"] if isinstance(value, Model) else []


def parts(value: Any) -> Iterator[Any]:
    """Return the value and everything in it in a fixed order, without calling any method that isolates."""
    yield value
    if isinstance(value, dict):
        for item in dict.values(value):
            yield from parts(item)
    elif isinstance(value, list):
        for item in list.__getitem__(value, slice(None)):
            yield from parts(item)
    elif isinstance(value, (tuple, deque)):
        for item in value:
            yield from parts(item)
    for name in fields_of(value):
        yield from parts(getattr(value, name))
    if (extra := carried_by(value)) is not _NONE:
        yield from parts(extra)


def changeable(value: Any) -> bool:
    """Return True if any part of the value can be changed in place."""
    if isinstance(value, (Frozen, FrozenRecord, FrozenNoted)):
        return changeable(value.x) or changeable(carried_by(value))
    if isinstance(value, (Row, Named)):
        return True
    if isinstance(value, tuple):
        return any(map(changeable, value))
    return isinstance(value, (dict, list, set, deque, bytearray, Point, Slotted, Record, Noted, Model))


Instruction = tuple[int, int, int, int]
"""What to take in hand, what to do with it, where, and with what; each modulo what there is."""

instructions: st.SearchStrategy[list[Instruction]] = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 60), st.integers(0, 4), st.integers(0, 24)), max_size=14
)

Action = Callable[[Any, int, Any], Any]
"""Given what is in hand, a place and a value; what it returns was obtained by it, one by one if it is a list of
`Got`."""


class Got(list[Any]):
    """Several objects obtained by one instruction."""


def _key(held: dict[Any, Any], place: int) -> Any:
    return list(dict.keys(held))[place % len(held)] if held else "missing"


def _in_place(call: Callable[..., Any]) -> Action:
    def action(held: Any, place: int, value: Any) -> Any:
        call(held, place, value)

    return action


def _star(held: Any, place: int, value: Any) -> Any:
    first, *rest = held
    return Got([first, rest, *rest])


def _match_dict(held: Any, place: int, value: Any) -> Any:
    match held:
        case {"a": found, **rest}:
            return Got([found, rest, *rest.values()])
        case dict():
            return "no a"
    raise AssertionError("not matched as a dict")


def _match_list(held: Any, place: int, value: Any) -> Any:
    match held:
        case [one, *rest]:
            return Got([one, *rest])
        case []:
            return "empty"
    raise AssertionError("not matched as a list")


def _while_growing(held: Any, place: int, value: Any) -> Any:
    """Iterate over a list and append each element met, as worklists do."""
    got = Got()
    for item in held:
        got.append(item)
        if len(held) < 6:
            held.append(item)
    return got


def _set_slice(held: Any, place: int, value: Any) -> None:
    held[place % (len(held) + 1) :] = [value]


def _del_slice(held: Any, place: int, value: Any) -> None:
    del held[place % (len(held) + 1) :]


def _ior(held: Any, place: int, value: Any) -> None:
    held |= {"or": value}


def _iadd(held: Any, place: int, value: Any) -> None:
    held += [value]


def _imul(held: Any, place: int, value: Any) -> None:
    if len(held) < 5:
        held *= 2


def _by_keywords(held: dict[str, Any]) -> Any:
    return dict(**held) if all(isinstance(key, str) for key in held) else {**held}


def _itself(held: Any, place: int, value: Any) -> Any:
    def give(*args: Any) -> Any:
        return args

    return Got(give(*held))


def _assigned(held: Any, place: int, value: Any) -> Any:
    mine: list[Any] = [0]
    mine[:] = held
    return mine


DICT: list[Action] = [
    lambda d, p, v: d[_key(d, p)],
    lambda d, p, v: d.get(_key(d, p)),
    lambda d, p, v: d.get("missing", v),
    lambda d, p, v: d.pop(_key(d, p)),
    lambda d, p, v: d.pop("missing", v),
    lambda d, p, v: d.popitem()[1],
    lambda d, p, v: d.setdefault(_key(d, p), v),
    lambda d, p, v: d.setdefault("fresh", v),
    lambda d, p, v: Got(d.values()),
    lambda d, p, v: Got(item for _, item in d.items()),
    lambda d, p, v: Got(d[key] for key in d),
    lambda d, p, v: Got(d[key] for key in reversed(d)),
    lambda d, p, v: Got(reversed(d.values())),
    lambda d, p, v: copy.deepcopy(d),
    lambda d, p, v: dict(d),
    lambda d, p, v: {**d},
    lambda d, p, v: _by_keywords(d),
    lambda d, p, v: {"or": v} | d,
    lambda d, p, v: {key: item for key, item in d.items()},
    lambda d, p, v: max(d.items(), key=lambda pair: str(pair[0]), default=None),
    lambda d, p, v: sorted(d.items(), key=lambda pair: str(pair[0])),
    lambda d, p, v: (len(d), "a" in d, list(d), bool(d), d == {}),
    _match_dict,
    _in_place(lambda d, p, v: d.__setitem__(_key(d, p), v)),
    _in_place(lambda d, p, v: d.__setitem__("fresh", v)),
    _in_place(lambda d, p, v: d.__delitem__(_key(d, p))),
    _in_place(lambda d, p, v: d.update({"fresh": v})),
    _in_place(lambda d, p, v: d.update(fresh=v)),
    _in_place(lambda d, p, v: d.clear()),
    _in_place(_ior),
]
LIST: list[Action] = [
    lambda x, p, v: x[p % len(x)],
    lambda x, p, v: x[-1],
    lambda x, p, v: x.pop(),
    lambda x, p, v: x.pop(p % len(x)),
    lambda x, p, v: Got(x),
    lambda x, p, v: Got(reversed(x)),
    lambda x, p, v: Got(item for _, item in enumerate(x)),
    lambda x, p, v: Got(item for item, _ in zip(x, range(9), strict=False)),
    lambda x, p, v: Got(map(lambda item: item, x)),
    lambda x, p, v: sorted(x, key=repr),
    lambda x, p, v: min(x, key=repr),
    lambda x, p, v: copy.deepcopy(x),
    lambda x, p, v: list(x),
    lambda x, p, v: tuple(x),
    lambda x, p, v: [*x],
    lambda x, p, v: [v] + x,
    lambda x, p, v: x * 2 if len(x) < 4 else None,
    lambda x, p, v: 2 * x if len(x) < 4 else None,
    lambda x, p, v: sum([x], [v]),
    lambda x, p, v: (len(x), x == [], x.count(1), 1 in x, bool(x)),
    _star,
    _itself,
    _assigned,
    _match_list,
    _while_growing,
    _in_place(lambda x, p, v: x.__setitem__(p % len(x), v)),
    _in_place(lambda x, p, v: x.append(v)),
    _in_place(lambda x, p, v: x.extend([v, 1])),
    _in_place(lambda x, p, v: x.extend(x) if len(x) < 4 else None),
    _in_place(lambda x, p, v: x.insert(p, v)),
    _in_place(lambda x, p, v: x.__delitem__(p % len(x))),
    _in_place(lambda x, p, v: x.remove(x[p % len(x)])),
    _in_place(lambda x, p, v: x.sort(key=repr)),
    _in_place(lambda x, p, v: x.reverse()),
    _in_place(lambda x, p, v: x.clear()),
    _in_place(_set_slice),
    _in_place(_del_slice),
    _in_place(_iadd),
    _in_place(_imul),
]
DERIVING_DICT: list[Action] = [
    lambda d, p, v: d.copy(),
    lambda d, p, v: copy.copy(d),
    lambda d, p, v: d | {"or": v},
]
"""What makes another dict of it that holds the same objects."""

DERIVING_LIST: list[Action] = [
    lambda x, p, v: x[p % (len(x) + 1) :],
    lambda x, p, v: Got(x[:p]),
    lambda x, p, v: x[::-1],
    lambda x, p, v: x.copy(),
    lambda x, p, v: copy.copy(x),
    lambda x, p, v: x + [v],
]
DEQUE: list[Action] = [
    lambda x, p, v: x[p % len(x)],
    lambda x, p, v: x.pop(),
    lambda x, p, v: x.popleft(),
    lambda x, p, v: Got(x),
    lambda x, p, v: x.copy(),
    lambda x, p, v: list(x),
    _in_place(lambda x, p, v: x.append(v)),
    _in_place(lambda x, p, v: x.appendleft(v)),
    _in_place(lambda x, p, v: x.rotate(1)),
    _in_place(lambda x, p, v: x.__setitem__(p % len(x), v)),
]
SET: list[Action] = [
    lambda x, p, v: x | {p},
    lambda x, p, v: x.copy(),
    lambda x, p, v: sorted(x),
    _in_place(lambda x, p, v: x.add(p)),
    _in_place(lambda x, p, v: x.discard(p)),
    _in_place(lambda x, p, v: x.update({p, 9})),
    _in_place(lambda x, p, v: x.clear()),
]
BYTES: list[Action] = [
    lambda x, p, v: bytes(x),
    _in_place(lambda x, p, v: x.append(p)),
    _in_place(lambda x, p, v: x.clear()),
]
TUPLE: list[Action] = [
    lambda x, p, v: x[p % len(x)],
    lambda x, p, v: Got(x),
    lambda x, p, v: x[1:],
    lambda x, p, v: list(x),
    lambda x, p, v: x + (v,),
]
OBJECT: list[Action] = [
    lambda x, p, v: x.x,
    lambda x, p, v: getattr(x, fields_of(x)[p % len(fields_of(x))]),
    lambda x, p, v: copy.copy(x),
    lambda x, p, v: copy.deepcopy(x),
    _in_place(lambda x, p, v: setattr(x, "x", v)),
    _in_place(lambda x, p, v: setattr(x, fields_of(x)[p % len(fields_of(x))], v)),
]


CARRIER: list[Action] = [
    lambda x, p, v: x.extra,
    _in_place(lambda x, p, v: carrying(x, v)),
]


def actions_on(held: Any, *, deriving: bool) -> list[Action]:
    actions = _actions_on(held, deriving=deriving)
    return actions + CARRIER if carried_by(held) is not _NONE else actions


def _actions_on(held: Any, *, deriving: bool) -> list[Action]:
    if isinstance(held, dict):
        return DICT + DERIVING_DICT if deriving else DICT
    if isinstance(held, list):
        return LIST + DERIVING_LIST if deriving else LIST
    if isinstance(held, deque):
        return DEQUE
    if isinstance(held, set):
        return SET
    if isinstance(held, bytearray):
        return BYTES
    return TUPLE if isinstance(held, tuple) else OBJECT


FRESH: list[Callable[[], Any]] = [
    lambda: 1,
    lambda: True,
    lambda: "new",
    list,
    dict,
    lambda: {"a": [1], "f": {}},
    lambda: [[2]],
    lambda: {7},
    lambda: Point([3]),
    lambda: Record({"r": 4}),
    lambda: ([5],),
    lambda: deque([[6]]),
]


class Twins:
    """Two values on which a program runs step by step, and the objects it obtained from each."""

    def __init__(self, subject: Any, model: Any) -> None:
        self.subject = [subject]
        self.model = [model]

    def run(self, program: list[Instruction], *, compare: bool, deriving: bool = True) -> None:
        """Run a program on both.

        Args:
            compare: each step must give the same on both sides.
            deriving: with slices, shallow copies and sums.
        """
        for hand, action, place, value in program:
            at = hand % len(self.model)
            choices = actions_on(self.model[at], deriving=deriving)
            if not compare and type(self.subject[at]) is not type(self.model[at]):
                choices = actions_on(self.subject[at], deriving=deriving)
            do = choices[action % len(choices)]
            subject_value, model_value = self._values(value, at)
            mine = _attempt(do, self.subject[at], place, subject_value)
            theirs = _attempt(do, self.model[at], place, model_value)
            if compare:
                self._check(mine, theirs)
            self._keep(mine, theirs)

    def _values(self, value: int, at: int) -> tuple[Any, Any]:
        """Return what an instruction stores: a new object, which is also kept for later, or one obtained earlier."""
        if value < len(FRESH):
            mine, theirs = FRESH[value](), FRESH[value]()
            self._keep(mine, theirs)
            return mine, theirs
        other = value % len(self.model)
        into = self.model[at]
        if any(part is into for part in parts(self.model[other])) or any(
            part is self.subject[at] for part in parts(self.subject[other])
        ):
            return 0, 0  # a value that contains itself cannot be written anyway
        return self.subject[other], self.model[other]

    def _keep(self, mine: Any, theirs: Any) -> None:
        both = (
            list(zip(mine, theirs, strict=False))
            if isinstance(theirs, Got) and isinstance(mine, Got)
            else [(mine, theirs)]
        )
        for subject, model in both:
            if changeable(model) and changeable(subject) and len(self.model) < 30:
                self.subject.append(subject)
                self.model.append(model)

    def _check(self, mine: Any, theirs: Any) -> None:
        assert shape(mine) == shape(theirs)

    def check_all(self) -> None:
        for subject, model in zip(self.subject, self.model, strict=True):
            assert shape(subject) == shape(model)


def _attempt(do: Action, held: Any, place: int, value: Any) -> Any:
    try:
        return do(held, place, value)
    except (LookupError, TypeError, AttributeError, ValueError, ZeroDivisionError) as error:
        return type(error)
