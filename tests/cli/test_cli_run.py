"""`pregel-async run`: the graph, its input and thread, and the output."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

GREETED = {"name": "Ada", "times": 1, "answer": {"text": "hello, Ada", "letters": ["A", "d", "a"]}}


def test_the_output_is_on_standard_output_and_everything_else_on_standard_error(shell: Any) -> None:
    """Standard output has every key of a mapping; progress is on standard error, as plain lines."""
    ended = shell.run("run", "flows:greeting", "--thread", "t", "--input", '{"name": "Ada"}')
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "a node prints this",
        "name: 'Ada'",
        "times: 1",
        "answer: Answer(text='hello, Ada', letters=['A', 'd', 'a'])",
    ]
    lines = [re.sub(r"\d+\.\d (m?s)", r"_ \1", line) for line in ended.err.splitlines()]
    assert lines[:3] == [
        "thread t in pregel.db: new",
        "superstep 1: hello, 1 task done, _ s",
        "finished: 1 superstep, 1 task, _ s",
    ]
    assert [line[:2] for line in lines[3:]] == ["  "] * 3
    assert "\x1b" not in ended.out + ended.err


def test_the_figures_of_a_run_follow_its_end(shell: Any, call: Any) -> None:
    """A finished or failed run prints its number of tasks, its writes to storage with their durations, and the stream's
    queue."""
    ended = call("run", "flows:greeting", "--thread", "t", "--input", '{"name": "Ada"}')
    figures = [re.sub(r"\d+\.\d (m?s)", r"_ \1", line) for line in ended.err.splitlines() if line.startswith("  ")]
    assert figures[0] == "  1 superstep, 1 task, _ s"
    assert re.fullmatch(
        r"  2 writes to storage: 3 checkpoints, 0 records, \d+ B; p50 _ ms, p95 _ ms, max _ ms", figures[1]
    )
    assert re.fullmatch(r"  \d parts? waited for the reader at most", figures[2])
    failed = call("run", "flows:failing", "--thread", "u")
    assert failed.code == 1
    assert re.search(r"^  \d superstep.*, 1 failure, \d\.\d s$", failed.err, re.MULTILINE), failed.err


def test_the_figures_can_be_left_out(shell: Any, call: Any) -> None:
    ended = call("run", "flows:greeting", "--thread", "t", "--no-figures")
    assert ended.err.splitlines()[-1].startswith("finished: 1 superstep, 1 task")


def test_a_thread_that_was_not_run_has_no_figures(shell: Any, call: Any) -> None:
    """A finished thread shows its output without figures, as nothing ran."""
    call("run", "flows:greeting", "--thread", "t")
    again = call("run", "flows:greeting", "--thread", "t")
    assert again.code == 0
    assert not [line for line in again.err.splitlines() if line.startswith("  ")]


def test_output_json_is_one_document_and_nothing_else(shell: Any) -> None:
    """With JSON output, text that nodes print goes to standard error, and nothing is shortened."""
    ended = shell.run("run", "flows:greeting", "--output-json", "--input", json.dumps({"name": "Ada" * 500}))
    assert json.loads(ended.out)["answer"] == {"text": "hello, " + "Ada" * 500, "letters": list("Ada" * 500)}
    assert ended.out.count("\n") == 1
    assert "a node prints this" in ended.err


def test_long_values_are_shortened_for_people(shell: Any, call: Any) -> None:
    ended = call("run", "flows:greeting", "--input", json.dumps({"name": "Ada" * 500}))
    assert ended.code == 0
    assert len(ended.out) < 1500
    assert "... +1495" in ended.out


@pytest.mark.parametrize("given", ['{"name": "Ada"}', "@input.json", "-"])
def test_an_input_is_json_or_a_file_or_standard_input(shell: Any, call: Any, given: str) -> None:
    (shell.cwd / "input.json").write_text('{"name": "Ada"}')
    run = shell.run if given == "-" else call
    ended = run("run", "flows:greeting", "--output-json", "--input", given, input='{"name": "Ada"}')
    assert json.loads(ended.out) == GREETED


def test_a_new_thread_without_input_gets_an_empty_one(shell: Any) -> None:
    """A generated thread id is printed, so that the thread can be found again."""
    ended = shell.run("run", "flows:greeting", "--output-json")
    assert json.loads(ended.out)["answer"]["text"] == "hello, world"
    found = re.search(r"^thread (\w+) in pregel\.db: new$", ended.err, re.MULTILINE)
    assert found is not None
    assert shell.run("history", "--thread", found[1]).code == 0
    assert found[1] not in shell.run("run", "flows:greeting").err


def test_an_input_that_does_not_fit_is_refused_before_anything_is_stored(shell: Any, call: Any) -> None:
    ended = call("run", "flows:greeting", "--thread", "t", "--input", '{"nmae": "Ada"}')
    assert ended.code == 1
    assert ended.err.splitlines()[1].startswith("error: InvalidInputError: the input has a key 'nmae'")
    assert "nothing was stored" in ended.err
    assert shell.ran == []
    assert call("history", "--thread", "t").code == 1


def test_a_finished_thread_shows_its_output_and_runs_nothing(shell: Any) -> None:
    """The same command can be repeated at any time."""
    first = shell.run("run", "flows:greeting", "--thread", "t", "--output-json")
    again = shell.run("run", "flows:greeting", "--thread", "t", "--output-json")
    assert (again.code, again.out) == (0, first.out)
    assert again.err.startswith("thread t in pregel.db: finished at superstep 1, nothing is left to run")
    assert shell.ran == ["hello"]


def test_a_finished_thread_runs_again_with_an_input(shell: Any, call: Any) -> None:
    """A new input runs on the thread's state: reducers continue from there."""
    call("run", "flows:greeting", "--thread", "t")
    again = call("run", "flows:greeting", "--thread", "t", "--output-json", "--input", '{"name": "Ada"}')
    assert json.loads(again.out) == {**GREETED, "times": 2}
    assert "a new input, after superstep 1" in again.err
    assert "superstep 4: hello" in again.err  # 2 is the input, 3 the hidden start


def test_a_failed_run_goes_on_with_the_command_that_it_prints(shell: Any) -> None:
    """A failed run prints the error with its place and exits with code 1; the printed command resumes it, and nothing
    recorded runs again."""
    failed = shell.run("run", "flows:failing", "--thread", "a thread", "--max-concurrency", "3")
    assert failed.code == 1
    assert failed.out == "a node prints this\n"
    assert "error: ConnectionError: nobody is there\n  in node 'fails', superstep 2, task " in failed.err
    assert "thread a thread is kept as it was after superstep 1" in failed.err
    assert "Traceback" not in failed.err
    shell.open()
    ended = shell.run(*failed.again)
    assert ended.code == 0
    assert "thread a thread in pregel.db: goes on after superstep 1" in ended.err
    assert "finished: 1 superstep, 1 task" in ended.err
    assert shell.ran == ["hello", "fails", "fails"]
    assert failed.again[:4] == ["run", "flows:failing", "--thread", "a thread"]
    assert failed.again[-2:] == ["--max-concurrency", "3"]


def test_tasks_that_finished_before_a_failure_do_not_run_again(shell: Any) -> None:
    """With one task at a time, item 1 fails after item 0 is recorded, and a resume does not run item 0 again."""
    failed = shell.run("run", "flows:breaking", "--thread", "t", "--max-concurrency", "1")
    assert failed.code == 1
    assert "error: ValueError: item 1\n  is odd\n  in node 'work', superstep 2" in failed.err
    assert "; 1 of the 5 tasks of the next are recorded" in failed.err
    shell.open()
    ended = shell.run(*failed.again, "--output-json")
    assert json.loads(ended.out) == {"done": [0, 1, 2, 3, 4]}
    assert "superstep 2: work, 5 of 5 tasks done, 1 of them earlier" in ended.err
    assert "finished: 1 superstep, 4 tasks" in ended.err
    assert shell.ran == ["first", *(f"work {item}" for item in range(5))]


def test_a_traceback_is_shown_when_asked_for(shell: Any, call: Any) -> None:
    failed = call("run", "flows:failing", "--traceback")
    assert failed.code == 1
    assert "Traceback (most recent call last)" in failed.err
    assert 'flows.py", line' in failed.err


def test_a_new_input_does_not_discard_unfinished_work_by_itself(shell: Any, call: Any) -> None:
    """A new input to an unfinished thread is refused with both alternatives, and changes nothing."""
    failed = call("run", "flows:failing", "--thread", "t")
    before = call("history", "--thread", "t").out
    refused = call("run", "flows:failing", "--thread", "t", "--input", '{"name": "Ada"}')
    assert refused.code == 2
    assert "thread 't' has unfinished work (fails), which a new input discards" in refused.err
    assert " ".join(failed.again) in refused.err
    assert "--discard-pending" in refused.err
    assert call("history", "--thread", "t").out == before

    shell.open()
    args = ("run", "flows:failing", "--thread", "t", "--input", '{"name": "Ada"}', "--discard-pending", "--output-json")
    ended = call(*args)
    assert ended.code == 0
    assert "discarded: fails" in ended.err
    assert json.loads(ended.out) == {**GREETED, "times": 2}
    assert shell.ran == ["hello", "fails", "hello", "fails"]


def test_the_recursion_limit_counts_for_one_call(shell: Any, call: Any) -> None:
    """After the recursion limit the thread continues with the same limit."""
    ended = call("run", "flows:looping", "--thread", "t", "--recursion-limit", "3")
    assert ended.code == 1
    assert "error: GraphRecursionError: the run reached its limit of 3 supersteps (at step 3)" in ended.err
    again = call(*ended.again)
    assert "(at step 6)" in again.err
    assert again.err.count("superstep 6: again") == 1


def test_lines_are_few_however_many_supersteps_there_are(shell: Any, call: Any) -> None:
    """The first ten supersteps have a line each; after that there are at most two lines a second."""
    ended = call("run", "flows:looping", "--recursion-limit", "300")
    assert 10 <= ended.err.count("again, 1 task done") < 40


def test_a_thread_that_is_in_use_is_refused_or_waited_for(
    shell: Any, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """`ThreadBusyError` names the lease's holder; `--wait` runs when the other process has ended."""
    os.mkfifo(shell.cwd / "pipe")
    first = started("run", "flows:reading", "--thread", "t")
    assert first.stdout is not None
    assert first.stdout.readline() == "reading\n"
    busy = shell.run("run", "flows:reading", "--thread", "t")
    assert busy.code == 3
    assert "error: ThreadBusyError: thread 't' is in use by" in busy.err
    assert str(first.pid) in busy.err
    assert "--wait waits" in busy.err
    second = started("run", "flows:reading", "--thread", "t", "--wait")
    assert second.stderr is not None
    assert "goes on after superstep 0" in second.stderr.readline()
    (shell.cwd / "pipe").write_text("")
    assert first.wait(60) == 0
    assert second.wait(60) == 0
    assert shell.ran == ["read"]


def test_system_exit_and_keyboard_interrupt_in_a_node_end_the_run(shell: Any, call: Any) -> None:
    """SystemExit and KeyboardInterrupt end the run with their exit codes, and the thread can be resumed."""
    exited = call("run", "flows:exiting", "--thread", "e")
    assert (exited.code, exited.again[3]) == (7, "e")
    interrupted = call("run", "flows:interrupting", "--thread", "i")
    assert (interrupted.code, interrupted.again[3]) == (130, "i")


def test_standard_output_that_is_closed_ends_the_command_quietly(shell: Any) -> None:
    """A pipe to `head` causes no traceback."""
    shell.run("run", "flows:looping", "--thread", "t", "--recursion-limit", "600")
    process = shell.start("history", "--thread", "t", "--json")
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) == 1
    assert err == ""
    process.stderr.close()


@pytest.mark.parametrize("target", ["flows:compiled", "flows:make", "flows:Holder.graph"])
def test_a_graph_may_be_a_builder_or_compiled_or_made_by_a_function(shell: Any, call: Any, target: str) -> None:
    """The graph stores its threads in the command line's database, whatever saver it was compiled with."""
    ended = call("run", target, "--thread", "t", "--output-json", "--input", '{"name": "Ada"}')
    assert json.loads(ended.out) == GREETED
    assert ("InMemorySaver is not used" in ended.err) is (target == "flows:compiled")
    assert call("history", "--thread", "t").code == 0


def test_a_function_may_take_the_checkpointer(shell: Any, call: Any) -> None:
    """A function may take the checkpointer, for a graph that is not a StateGraph. Supersteps are shown with their
    stored numbers."""
    ended = call("run", "flows:make_stored", "--thread", "t", "--output-json", "--input", "21")
    assert (ended.code, ended.out) == (0, "42\n")
    assert "superstep 0: double" in ended.err
    assert call("history", "--thread", "t", "--json").out.count('"step": 0') == 1


def test_a_module_may_be_a_file_even_inside_a_package(shell: Any, call: Any) -> None:
    """A file within a package gets its full module name, so that its relative imports work."""
    (shell.cwd / "here.py").write_text("from parcel.outer import builder\n")
    for target in ("here.py:builder", "here:builder", "parcel.inner:graph"):
        assert json.loads(call("run", target, "--output-json").out) == {"word": "parcel"}
    (shell.cwd / "package").mkdir()
    (shell.cwd / "package" / "__init__.py").touch()
    (shell.cwd / "package" / "inner.py").write_text("from .outer import builder\n")
    (shell.cwd / "package" / "outer.py").write_text("from parcel.outer import builder\n")
    assert json.loads(call("run", "package/inner.py:builder", "--output-json").out) == {"word": "parcel"}
