"""Run the core algorithm without an event loop: a scripted port, and small programs.

Nodes are plain functions. The script chooses the order in which the tasks of a superstep end; outcomes are in plan
order regardless, as the port's contract requires.

Nodes are plain functions. Which task of a superstep ends first is the script's choice; outcomes are in plan order
whatever it chooses, as the port's contract says.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.isolation import isolate
from pregel_async._core.ownership import own
from pregel_async._core.program import SENDS, Node, Program, Write, build_program
from pregel_async._core.task import Cancelled, Failed, Finished, Outcome, Task
from pregel_async.channels import MISSING, BaseChannel, Topic
from pregel_async.types import Send

T = TypeVar("T")
Channel = BaseChannel[Any, Any, Any]

SCOPE = ("thread", "")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise AssertionError("the algorithm waited for something other than its port")


class Step(NamedTuple):
    """The results of one superstep, as plain data."""

    number: int
    ran: tuple[str, ...]
    ids: tuple[str, ...]
    values: dict[str, Any]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    changed: tuple[str, ...]
    upcoming: tuple[str, ...]


class Script:
    """A port that runs tasks one after the other, in an order of its choice, and records its calls.

    Args:
        order: given how many tasks a superstep has, the order of the places in which they run; plan order by default.
    """

    def __init__(self, program: Program, order: Callable[[int], Iterable[int]] = range) -> None:
        self.program = program
        self.order = order
        self.calls: list[str] = []
        self.steps: list[Step] = []
        self.finished: list[str] = []
        self.given_up: list[tuple[tuple[str, ...], tuple[Outcome, ...], BaseException]] = []

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        self.calls.append(f"execute {board.step + 1}")
        outcomes: list[Outcome] = [Cancelled() for _ in tasks]
        for place in self.order(len(tasks)):
            outcomes[place] = outcome_of(self.program, board, tasks[place])
            self.finished.append(tasks[place].node.name)
        return outcomes

    async def checkpoint(
        self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
    ) -> None:
        self.calls.append(f"checkpoint {board.step}")
        self.steps.append(
            Step(
                board.step,
                tuple(task.node.name for task in ran),
                tuple(task.id for task in ran),
                own(board.values),
                dict(board.versions),
                {channel: dict(seen) for channel, seen in board.seen.items() if seen},
                tuple(board.changed),
                tuple(task.node.name for task in upcoming),
            )
        )

    async def pause(self, board: Board, tasks: Sequence[Task], outcomes: Sequence[Outcome]) -> None:
        self.calls.append(f"pause {tasks[0].step}")

    async def fail(self, tasks: Sequence[Task], outcomes: Sequence[Outcome], error: BaseException) -> None:
        self.calls.append(f"give up {tasks[0].step}")
        self.given_up.append((tuple(task.node.name for task in tasks), tuple(outcomes), error))


def outcome_of(program: Program, board: Board, task: Task) -> Outcome:
    """Run one task: its node, then its routers, as the runtime does."""
    node, writes = task.node, None
    try:
        value = board.input_of(node) if task.send < 0 else isolate(task.arg)
        writes = [(name, own(item)) for name, item in node.writes(node.call(value))]
        everything: list[Write] = [*writes, *node.edges]
        for router in node.routers:
            answer = router.call(board.view_of(router, program, writes))
            everything.extend((name, own(item)) for name, item in router.route(answer))
    except Exception as error:
        return Failed(error, writes)
    return Finished(everything)


def begin(program: Program, given: Any, board: Board | None = None) -> Board:
    """Return a board with an input written to it; pending tasks count as run."""
    board = Board(program) if board is None else board
    writes = [(name, own(value)) for name, value in program.read_input(given)]
    superstep.update(program, board, superstep.plan(program, board, SCOPE), [writes])
    board.ran = ()
    return board


def run(
    program: Program,
    given: Any,
    *,
    port: Script | None = None,
    board: Board | None = None,
    scope: superstep.Scope = SCOPE,
    limit: int = 1000,
) -> Script:
    """Run a program to its end. The script's `steps` holds the supersteps; `finished` holds the order in which tasks
    ended."""
    port = Script(program) if port is None else port
    drive(superstep.run(program, begin(program, given, board), port, scope=scope, limit=limit))
    return port


def plan(program: Program, board: Board, scope: superstep.Scope = SCOPE) -> list[Task]:
    return superstep.plan(program, board, scope)


def write(
    program: Program,
    board: Board,
    *writes: Write,
    by: Sequence[Task] = (),
) -> Board:
    """Fold writes into a board as the first task of `by`, or as input from outside if `by` is empty."""
    superstep.update(program, board, by, [list(writes), *([] for _ in by[1:])])
    return board


def stored(graph: Program, board: Board) -> Board:
    """Store and restore a board: only tracked channels that hold a value come back."""
    held = {
        name: board.stored_value(name)
        for name, channel in board.channels.items()
        if channel.tracked and board.stored_value(name) is not MISSING
    }
    return Board.restore(
        graph,
        step=board.step,
        clock=board.clock,
        stored=held,
        versions={name: board.versions[name] for name in held},
        seen={name: board.seen[name] for name in held if name in board.seen},
        ran=board.ran,
    )


def nothing(value: Any) -> None:
    """A node that writes nothing."""


def node(
    name: str,
    triggers: str | Sequence[str],
    call: Callable[[Any], Any] = nothing,
    *,
    reads: str | Sequence[str] | None = None,
    sends: Sequence[str] = (),
    hidden: bool = False,
) -> Node:
    """Return a node whose function returns a mapping of channels to values, or a list of pairs.

    Args:
        sends: channels that are written None after each run, as an edge is.
    """
    triggers = (triggers,) if isinstance(triggers, str) else tuple(sorted(triggers))
    return Node(
        name=name,
        triggers=triggers,
        reads=triggers if reads is None else reads if isinstance(reads, str) else tuple(reads),
        call=call,
        flavour="inline",
        writes=pairs,
        edges=tuple((channel, None) for channel in sends),
        hidden=hidden,
    )


def pairs(result: Any) -> list[Write]:
    if result is None:
        return []
    return list(result.items()) if isinstance(result, Mapping) else list(result)


def program(*nodes: Node, keys: Any = None, **channels: Any) -> Program:
    """Return a program whose input is a mapping of any channels."""
    return build_program(
        name="scripted",
        nodes=nodes,
        channels={SENDS: Topic(Send), **channels},
        keys=channels if keys is None else keys,
        inputs=tuple(channels),
        outputs=tuple(channels),
        shown=tuple(channels),
        read_input=pairs,
        read_command=lambda command: list(command.update.items()),
    )
