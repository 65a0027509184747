"""Run a graph for the command `run`: start or continue, show progress, stop on a signal, and print how to resume."""

from __future__ import annotations

import contextlib
import secrets
import sys
from typing import Any

import anyio
import msgspec

from checkpoint_savers.children import start_soon

from .._api.compiled import Graph
from ..errors import PregelError, ThreadBusyError
from ..observing import Figures
from ..types import START, Command, OnConflict, RunnableConfig, StateSnapshot
from .database import Database
from .exit_codes import exit_code_of
from .formatting import count_names, escape, explain, format_duration, plural, print_json, print_value, shell_word
from .progress import MODES, ProgressView, RunProgress, choose_view
from .stop_signals import StopSignals
from .target import Target, UntypedGraph, UsageError, attach

STOPPING_NOTICE = b"stopping as soon as the tasks that have begun let go; another Ctrl-C ends it at once\n"


class RunArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command `run`.

    Attributes:
        target: MODULE:GRAPH, as written on the command line.
        graph_input: the input; None if none was given.
        resume: answers to open questions, as in `Command(resume=...)`; None if none were given.
        thread: the thread's id; None to generate one.
        database: where the thread is stored.
        context: the context of the graph's nodes; None for none.
        configurable: further keys of the config's `configurable`.
        metadata: the metadata of the run's checkpoints, besides the graph's name.
        checkpoint: the checkpoint to run from; None for the thread's newest.
        recursion_limit: the maximum number of supersteps; None for the default.
        max_concurrency: the maximum number of tasks at a time; None for the default.
        discard_pending: a new input may discard unfinished work.
        wait: wait while another run owns the thread.
        output_json: print the output as JSON.
        figures: print what the run took.
        traceback: print tracebacks of errors.
        program: the words that start this program, for the command that resumes the run.
        repeated: further options, for the same command.
    """

    target: str
    graph_input: Any
    resume: Any
    thread: str | None
    database: Database
    context: Any
    configurable: dict[str, Any]
    metadata: dict[str, Any]
    checkpoint: str | None
    recursion_limit: int | None
    max_concurrency: int | None
    discard_pending: bool
    wait: bool
    output_json: bool
    figures: bool
    traceback: bool
    program: tuple[str, ...]
    repeated: tuple[str, ...]


def run_graph(target: Target, request: RunArguments) -> int:
    """Run a graph on asyncio, and print its output.

    Args:
        target: the graph, builder or factory that `load` returned.
        request: the command's options.

    Returns:
        The exit code: 0, 1 if the run failed, 130 or 143 if a signal stopped it. A node's `SystemExit` may set another.

    Raises:
        UsageError: the options do not fit the thread; nothing was run.
    """
    this = _RunCommand(target, request)
    code = anyio.run(this.execute)
    if code == 0:
        print_json(this.output) if request.output_json else print_value(this.output)
    return code


class _RunCommand:
    """One execution of the command.

    Attributes:
        output: the graph's output, once the run has finished.
    """

    def __init__(self, target: Target, request: RunArguments) -> None:
        self.output: object = None
        self._target = target
        self._request = request
        self._thread = request.thread or secrets.token_hex(6)
        self._stop = StopSignals()
        self._is_begun = False  # the run has begun: it is continued from the thread's newest checkpoint
        self._figures = Figures()

    async def execute(self) -> int:
        """Do what the options ask for, and return the exit code."""
        try:
            async with self._request.database.open(new=True) as saver:
                graph = attach(self._target, saver)
                if isinstance(self._target, Graph) and self._target.checkpointer is not None:
                    replaced = type(self._target.checkpointer).__name__
                    _print_status(
                        f"the graph's own {replaced} is not used: threads are kept in {self._request.database.name}"
                    )
                before = await graph.aget_state(self._config)
                graph_input = self._choose_input(before)
                if graph_input is None and (not before.next or _waits_for_answers(before)):
                    self.output = graph.output_from(before.values)
                    return 0
                return await self._run_graph(graph, graph_input, before)
        except UsageError:
            raise
        except Exception as error:  # from the database, its content, or the function that makes the graph
            return self._report_failure(error)

    @property
    def _config(self) -> RunnableConfig:
        config: RunnableConfig = {
            "configurable": {**self._request.configurable, "thread_id": self._thread},
            "metadata": {"graph": self._request.target, **self._request.metadata},
        }
        if self._request.checkpoint is not None and not self._is_begun:
            config["configurable"]["checkpoint_id"] = self._request.checkpoint
        if self._request.recursion_limit is not None:
            config["recursion_limit"] = self._request.recursion_limit
        if self._request.max_concurrency is not None:
            config["max_concurrency"] = self._request.max_concurrency
        return config

    def _choose_input(self, before: StateSnapshot) -> Any:
        """Print what is going to happen, and return the input of the run; None continues from the stored state."""
        graph_input, where = self._request.graph_input, f"thread {self._thread} in {self._request.database.name}"
        if self._request.resume is not None:
            if not before.interrupts:
                raise UsageError(f"{where} has no open question to answer: leave --resume out")
            _print_status(
                f"{where}: answered, after superstep {(before.metadata or {}).get('step')}{_recorded_note(before)}"
            )
            return Command(resume=self._request.resume)
        if before.metadata is None:
            if self._request.checkpoint is not None:
                raise UsageError(f"{where} has no checkpoint {self._request.checkpoint}")
            _print_status(f"{where}: new")
            return {} if graph_input is None else graph_input
        at = f"superstep {before.metadata.get('step')}"
        if graph_input is None and _waits_for_answers(before):
            _print_status(f"{where}: waits after {at}{_recorded_note(before)}")
            self._print_questions(before)
            return None
        if graph_input is None:
            ended = f"finished at {at}, nothing is left to run (--input runs it again, on its state)"
            _print_status(f"{where}: {f'goes on after {at}{_recorded_note(before)}' if before.next else ended}")
            return None
        if not before.next:
            _print_status(f"{where}: a new input, after {at}")
        elif self._request.discard_pending:
            _print_status(f"{where}: a new input, after {at}; discarded: {count_names(before.next)}")
        else:
            raise UsageError(
                f"thread {self._thread!r} has unfinished work ({count_names(before.next)}), "
                f"which a new input discards. To go on with it, leave --input out: {self._resume_command}. "
                "To discard it, add --discard-pending."
            )
        return graph_input

    async def _run_graph(self, graph: UntypedGraph, graph_input: Any, before: StateSnapshot) -> int:
        progress = RunProgress(_first_step(graph, graph_input, before))
        view = choose_view(progress, sys.stderr)
        failure: BaseException | None = None

        def stop() -> None:
            view.close()
            scope.cancel()

        config, self._is_begun = self._config, True
        on_signal = (lambda: view.clear_sequence + STOPPING_NOTICE), stop
        with anyio.CancelScope() as scope, self._stop.handle(on_signal):
            try:
                with view:
                    await self._stream(graph, graph_input, config, progress, view)
            except anyio.get_cancelled_exc_class():
                raise
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                failure = error
        if scope.cancelled_caught:
            assert self._stop.received is not None
            _print_status(f"stopped by {self._stop.received.name}")
            self._print_figures()
            await self._print_resume_command(graph)
            return 128 + self._stop.received
        if failure is not None:
            code = self._report_failure(failure)
            self._print_figures()
            await self._print_resume_command(graph)
            return code
        after = await graph.aget_state(self._config)
        _print_status(
            f"{'stopped before ' + count_names(after.next) if after.next else 'finished'}: "
            f"{plural(progress.supersteps, 'superstep')}, {plural(progress.tasks, 'task')}, "
            f"{format_duration(progress.elapsed)}"
        )
        self._print_figures()
        if after.interrupts:
            self._print_questions(after)
        elif after.next:
            _print_status(f"to go on: {self._resume_command}")
        self.output = graph.output_from(after.values)
        return 0

    async def _stream(
        self,
        graph: UntypedGraph,
        graph_input: Any,
        config: RunnableConfig,
        progress: RunProgress,
        view: ProgressView,
    ) -> None:
        async def tick() -> None:
            while True:
                await anyio.sleep(1)
                view.on_tick()

        conflict: OnConflict = "wait" if self._request.wait else "reject"
        quiet = contextlib.redirect_stdout(sys.stderr) if self._request.output_json else contextlib.nullcontext()
        failure: BaseException | None = None
        async with anyio.create_task_group() as group:
            start_soon(group, tick)
            try:
                with quiet:
                    stream = graph.astream(
                        graph_input,
                        config,
                        context=self._request.context,
                        stream_mode=MODES,
                        on_conflict=conflict,
                        observer=self._figures,
                    )
                    async with stream as chunks:
                        async for mode, chunk in chunks:
                            if progress.count_chunk(mode, chunk):
                                view.on_task_done()
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                failure = error  # re-raised after the task group, which would wrap it in an exception group
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _report_failure(self, error: BaseException) -> int:
        """Print an error, and return the exit code."""
        for line in explain(error, full=self._request.traceback):
            _print_status(line)
        if isinstance(error, ThreadBusyError) and not error.lost:
            _print_status("--wait waits for that run to end")
        elif not self._request.traceback and not isinstance(error, PregelError):
            _print_status("(--traceback shows where)")
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code:
            return error.code
        return 130 if isinstance(error, KeyboardInterrupt) else exit_code_of(error)

    def _print_figures(self) -> None:
        """Print what the run took, including nested graphs and called tasks. Print nothing if no run began."""
        if self._request.figures and self._figures.writes:
            for line in self._figures.lines():
                _print_status(f"  {line}")

    async def _print_resume_command(self, graph: UntypedGraph) -> None:
        """Print what is stored, and the command that continues from it."""
        try:
            state = await graph.aget_state(self._config)
        except PregelError:
            return  # the error of storage has been printed already
        if state.metadata is not None and state.next:
            step = state.metadata.get("step")
            _print_status(f"thread {self._thread} is kept as it was after superstep {step}{_recorded_note(state)}")
            _print_status(f"to go on: {self._resume_command}")
        elif state.metadata is None:
            _print_status("nothing was stored: to begin again, repeat the command")

    def _print_questions(self, state: StateSnapshot) -> None:
        """Print the thread's open questions, and the command that answers them."""
        for question in state.interrupts:
            _print_status(f"question {question.id}: {question.value!r}")
        _print_status(
            f"to answer: {self._resume_command} --resume JSON"
            + (" ({id: answer, ...})" if len(state.interrupts) > 1 else "")
        )

    @property
    def _resume_command(self) -> str:
        """The command that resumes the thread."""
        request = self._request
        words = [*request.program, "run", request.target, "--thread", self._thread, *request.database.words]
        if request.checkpoint is not None and not self._is_begun:
            words += ["--checkpoint", request.checkpoint]
        words += request.repeated
        if request.recursion_limit is not None:
            words += ["--recursion-limit", str(request.recursion_limit)]
        if request.max_concurrency is not None:
            words += ["--max-concurrency", str(request.max_concurrency)]
        if request.output_json:
            words.append("--output-json")
        return " ".join(map(shell_word, words))


def _waits_for_answers(state: StateSnapshot) -> bool:
    """Return True if no task can run before a question is answered."""
    return bool(state.interrupts) and all(task.interrupts or task.result is not None for task in state.tasks)


def _recorded_note(state: StateSnapshot) -> str:
    """Format how many tasks of the next superstep are recorded, and so do not run again."""
    recorded = sum(task.result is not None for task in state.tasks)
    return f"; {recorded} of the {plural(len(state.tasks), 'task')} of the next are recorded" if recorded else ""


def _first_step(graph: UntypedGraph, graph_input: Any, before: StateSnapshot) -> int:
    """Return the number of the first superstep whose tasks the stream shows."""
    # An input takes a superstep, and the hidden start node of a StateGraph takes the next one.
    stored = -2 if before.metadata is None else before.metadata.get("step", -2)
    if graph_input is None or isinstance(graph_input, Command):
        return stored + 1
    return stored + (3 if START in graph.nodes else 2)


def _print_status(line: str) -> None:
    """Print a line for the user on standard error. Standard output is for the result only."""
    print(escape(line), file=sys.stderr, flush=True)
