"""Damage under declared changes is reported as damage: rules do not hide it, and it is no changed type."""

from __future__ import annotations

import operator
import os
import random
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import pytest
from msgspec import structs

from checkpoint_savers import InMemorySaver, stored_type
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.records import Chain
from pregel_async import START, Command, interrupt, task
from pregel_async.types import REMOVED, Added, Renamed, Retyped, StoredState
from tests.upgrades.graphs import built, says
from tests.upgrades.test_table import item

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

DAMAGES = int(os.environ.get("PREGEL_DAMAGES", "40"))

Item = stored_type("Item")(item(name="pen"))
NewItem = stored_type("Item", version=2, upcast={1: lambda fields: {"title": fields["name"]}})(item(title="pen"))


make_schema: Any = TypedDict
"""For keys whose classes are made here."""

OLD: dict[str, Any] = {
    "log": Annotated[list[str], operator.add],
    "name": str,
    "cents": int,
    "net": int,
    "item": Item,
}
NEW: dict[str, Any] = {
    "lines": Annotated[list[str], Renamed("log"), operator.add],
    "customer": Annotated[str, Renamed("name")],
    "price": Annotated[str, Retyped(lambda cents: f"{cents / 100:.2f}", was="cents")],
    "vat": Annotated[int, Added(19)],
    "total": int,
    "item": NewItem,
}


def to_2(old: StoredState) -> dict[str, Any]:
    return {"total": old["net"] + 1, "net": REMOVED} if "net" in old else {}


class Damaging(InMemorySaver):
    """Returns chains in which one frame is damaged, of a row or of a record.

    Attributes:
        chance: chooses the frame and the damage; None for none.
    """

    chance: random.Random | None = None

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: Any = None) -> Chain | None:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None or self.chance is None:
            return chain
        at = self.chance.randrange(len(chain.rows) + len(chain.records))
        rows, records = self.damaged(chain.rows, at), self.damaged(chain.records, at - len(chain.rows))
        return structs.replace(chain, rows=rows, records=records)

    def damaged(self, found: Sequence[Any], at: int) -> tuple[Any, ...]:
        return tuple(
            [structs.replace(each, frame=self.mutated(each.frame)) if n == at else each for n, each in enumerate(found)]
        )

    def mutated(self, frame: bytes) -> bytes:
        assert self.chance is not None
        data, at = bytearray(frame), self.chance.randrange(len(frame))
        match self.chance.randrange(3):
            case 0:
                data[at] ^= 1 << self.chance.randrange(8)
            case 1:
                del data[at:]
            case _:
                data[at:at] = self.chance.randbytes(self.chance.randrange(1, 9))
        return bytes(data)


@task
async def charge() -> str:
    return "charged"


def shop(saver: Any, *, new: bool) -> Any:
    """A finished sibling of a node that calls a task and asks; and the same with each kind of declared change."""
    lines, node = ("lines", "sign_off") if new else ("log", "approve")

    async def ask(state: Any) -> Any:
        return {lines: [await charge(), interrupt("good?")]}

    update = {"price": "3.00", "item": NewItem()} if new else {"cents": 300, "item": Item()}
    nodes = {node: (ask, {"was": "approve"} if new else {}), "sibling": says("sibling", update)}
    options = dict[str, Any](version=2, migrations={2: to_2}) if new else {}
    schema = make_schema("schema", NEW if new else OLD, total=False)
    return built(schema, nodes, [(START, node), (START, "sibling")], saver, **options)


async def test_damage_is_still_damage() -> None:
    """P11, P15: any damage of a row or a record of idle and open threads is `CorruptCheckpointError` for reads and runs,
    and damage for the check before a deployment: no changed type, no failed rule, no missing node."""
    saver = Damaging()
    old, new = shop(saver, new=False), shop(saver, new=True)
    for thread in ("idle", "open"):
        await old.ainvoke({"name": "Ada", "cents": 250, "net": 9, "item": Item("cap")}, thread)
    await old.ainvoke(Command(resume="yes"), "idle")
    assert [check.loads async for check in new.acheck_threads()] == [True, True]
    calls = {
        "read": new.aget_state,
        "run": lambda thread: new.ainvoke(None, thread),
        "input": lambda thread: new.ainvoke({"customer": "Bob"}, thread),
        "edit": lambda thread: new.aupdate_state(thread, {"lines": ["by hand"]}, as_node="sibling"),
    }
    before = [await saver.dump(thread) for thread in ("idle", "open")]
    for number in range(DAMAGES):
        for thread in ("idle", "open"):
            for name, call in calls.items():
                saver.chance = random.Random(f"{number} {thread} {name}")
                with pytest.raises(CorruptCheckpointError):
                    await call(thread)
        async for check in new.acheck_threads():
            assert (check.mismatches, bool(check.damage)) == ((), True), number
    saver.chance = None
    assert [await saver.dump(thread) for thread in ("idle", "open")] == before
    assert (await new.ainvoke(Command(resume="yes"), "open"))["price"] == "3.00"
