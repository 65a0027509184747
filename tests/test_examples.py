"""Every example and every Python block of README runs, as users would run it, in a process of its own."""

from __future__ import annotations

import json
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pregel_async.channels.laws import ChannelLaws
from tests.helpers.code_blocks import ROOT, blocks, python, run, run_block

EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"

SAYS = {
    "01_hello_graph.py": ["hello graph"],
    "02_streaming.py": [
        "    {'conclude': {'verdict': '3 words, a question'}}",
        "    {'text': 'What runs when?', 'findings': ['3 words', 'a question'], 'verdict': '3 words, a question'}",
        "    planned conclude",
        "    ended   conclude",
    ],
    "03_durable_thread.py": [
        "    charging the card (this must happen once)",
        "    failed: the warehouse does not answer",
        "    stored: ['charged'], next: ship, because of ConnectionError: the warehouse does not answer",
        "    result: ['charged', 'shipped']",
        "        ['charged'], then ship",
    ],
    "04_fan_out.py": ["primes: [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]", "their sum: 328"],
    "05_custom_channel.py": ["after reading 20: mean 16, mild", "after reading 6: mean 9, cold"],
    "06_trio.py": [
        "    slow cleans up",
        "    stored: ['hello, trio'], next: slow",
        "    result: ['hello, trio', 'goodbye, trio']",
    ],
    "07_ask_a_person.py": [
        "    writing the reason (once)",
        "    it asks: Refund 40 euros, because the kettle leaks?",
        "    still open: Refund 40 euros, because the kettle leaks?",
        "    it asks: To which account?",
        "    paid to NL 12",
    ],
    "08_messages.py": [
        "2 messages are forgotten, 4 are left:",
        "    user: hello again",
        "    assistant: You said 'hello again'.",
        "    user: bye",
        "    assistant: You said 'bye'.",
    ],
    "09_workflow.py": [
        "    failed: the mail server does not answer",
        "    mailed: 3 words",
        "    mailed: 6 words",
        "3 texts were counted",
    ],
    "10_subgraphs.py": [
        "    support is at reply, which asks: what we know of 'a kettle'. What do I say?",
        "    turn it off and on",
        "    sales will call you back",
    ],
    "11_time_travel.py": [
        "['chose soup'], then cook",
        "['chose soup', 'cooked soup for Ada'], then nothing",
        "replayed: ['chose soup', 'cooked soup for Ada']; ran: ['cook']",
        "forked: ['chose cake', 'cooked cake for Ada']; ran: ['cook']",
        "edited: ['chose cake', 'cooked cake for Ada', 'ate it']",
        "the first branch is as it was: ['chose soup', 'cooked soup for Ada']",
    ],
    "12_sync.py": [
        "{'greet': {'log': ['hello Ada']}}",
        "['hello Ada', 'fine']",
        "['hello Ada', 'fine', 'goodbye']",
        "[3, 2, 1, 0, 0]",
        "[['hello Bob'], ['hello Eve']]",
    ],
    "13_tokens.py": [
        "    answer, by scripted-1: 'An '",
        "    answer, by scripted-1: 'pond '",
        "    it ends: stop",
        "the message: 'An old silent pond '",
    ],
    "14_memory.py": [
        "    ann, monday: 'hello' -> I know nothing of you.",
        "    ann, monday: 'I like soup' -> I know that you like soup.",
        "    ann, tuesday: 'I like figs' -> I know that you like figs and soup.",
        "another process, another day:",
        "    ann, friday: 'hello' -> I know that you like figs and soup.",
        "    bob, friday: 'hello' -> I know nothing of you.",
        "known are ['ann', 'bob']",
        "of whom ['ann'] likes something",
    ],
    "15_agent.py": [
        "    looking up Oslo (once)",
        "may send_email run with {'to': 'ada', 'text': 'Sunny!'}? yes",
        "    sending 'Sunny!' to ada",
        "user: How is the weather in Oslo?",
        "assistant: ['weather', 'send_email']",
        "tool: Oslo is sunny",
        "tool: sent",
        "assistant: It is sunny in Oslo, and Ada knows.",
    ],
    "16_supervisor.py": [
        "    adding [3, 4] (once)",
        "    failed: the printer does not answer",
        "    printing 7",
        "supervisor: ['transfer_to_analyst']",
        "analyst: Sales are 7.",
        "analyst: ['transfer_back_to_supervisor']",
        "supervisor: ['transfer_to_printer']",
        "printer: Printed.",
        "supervisor: The report is printed.",
    ],
    "17_rag.py": [
        "    searching 'How fast does the kettle boil water?': ['kettle.md', 'kettle.md']",
        "How fast does the kettle boil water? The kettle boils a litre of water in three minutes. (kettle.md)",
        "How long is the warranty? The warranty of all devices is two years. (warranty.md)",
        "read so far: ['kettle.md', 'warranty.md']",
    ],
    "18_mcp_tools.py": [
        "the server's tools: ['count', 'recount']",
        "tool: 12",
        "tool: The call of 'recount' on the server 'stock' failed: the connection was lost during the call, which may have "
        "been carried out or not",
        "tool: 0",
        "assistant: 12 kettles, and 0 toasters.",
    ],
    "19_pydantic_ai_node.py": [
        "    paying 7 euros to ada (once)",
        "    failed: the model does not answer",
        "clerk: ['pay']",
        "pay: paid 7 euros to ada",
        "clerk: I have paid 7 euros to ada.",
    ],
    "upgrades": [
        "    order-1 is idle: ['approved: yes', 'packed', 'shipped to Ada for 1250 cents']",
        "    order-2 asks: Ship a lamp?",
        "    order-3 has failed: no box is large enough for a ladder",
        "version 2, if its author forgot the declarations:",
        "    order-1 loads",
        "        key 'name' is stored and unknown",
        "    order-2 does not load",
        "        a task of node 'approve' is pending, and there is no such node",
        "version 2:",
        "    order-2 loads, converted",
        "    reserving a cup (once)",
        "    order-1: Ada gets a cup; the coupon is gone",
        "version 3:",
        "    order-2 still asks: Ship a lamp?",
        "    order-2: ['approved: yes', 'shipped by post to Bob for 12.50 EUR']",
        "    order-3: ['approved: yes', 'shipped by post to Eve for 12.50 EUR']",
        "    counting a chair",
        "    reserving a chair (once)",
        "        a kettle for 12.50 EUR",
        "version 1 again:",
        "    but it can be read: a chair, and unknown are ['carrier', 'customer', 'price']",
    ],
}
"""Lines that each example must print, in this order."""

NEEDS = {"18_mcp_tools.py": "mcp", "19_pydantic_ai_node.py": "pydantic_ai"}
"""Packages without which an example cannot run."""

ONCE = {
    "15_agent.py": ["    looking up Oslo (once)"],
    "16_supervisor.py": ["    adding [3, 4] (once)"],
    "19_pydantic_ai_node.py": ["    paying 7 euros to ada (once)"],
    "03_durable_thread.py": ["    charging the card (this must happen once)"],
    "07_ask_a_person.py": ["    writing the reason (once)"],
    "09_workflow.py": ["    counting the words of 'one two'", "    counting the words of 'three'"],
    "upgrades": [f"    reserving a {item} (once)" for item in ("kettle", "lamp", "ladder", "cup", "chair")],
}
"""Lines that an example prints once, however often it stops and resumes."""


@pytest.mark.parametrize("name", [*sorted(path.name for path in EXAMPLES.glob("[0-9]*.py")), "upgrades"])
def test_an_example_runs_and_says_what_it_should(name: str, tmp_path: Path) -> None:
    """An example runs offline, from any directory, without a warning, leaves nothing behind, and prints the expected
    lines."""
    needed = NEEDS.get(name)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed here: nox -s adapters installs it")
    args = [str(EXAMPLES / name)] if name.endswith(".py") else ["-m", f"examples.{name}"]
    printed = run(tmp_path, *args).splitlines()
    places = [printed.index(line) for line in SAYS[name]]
    assert places == sorted(places)
    for once in ONCE.get(name, []):
        assert printed.count(once) == 1
    assert list(tmp_path.iterdir()) == []


def test_importing_an_example_runs_nothing(tmp_path: Path) -> None:
    """An example does its work in a guarded `main`."""
    names = [f"examples.{path.stem}" for path in EXAMPLES.glob("[0-9]*.py")]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    assert run(tmp_path, "-c", code) == ""
    assert list(tmp_path.iterdir()) == []


def test_the_main_job_runs_by_itself(tmp_path: Path) -> None:
    """`python -m examples.code_audit` audits this repository's own sources; a second call starts a new audit."""
    args = ("-m", "examples.code_audit", str(ROOT / "pregel_async"), "--limit", "3")
    first = run(tmp_path, *args)
    assert run(tmp_path, *args) == first
    printed = first.splitlines()
    assert re.fullmatch(r"\d+ files, [\d,]+ lines, [\d,]+ functions", printed[0])
    assert printed[-1] == f"The report is in {tmp_path / 'code-audit.md'}"
    assert (tmp_path / "code-audit.md").read_text().startswith(f"# Code audit of `{ROOT / 'pregel_async'}`\n")


def test_the_main_job_runs_on_the_command_line(tmp_path: Path) -> None:
    """README's first command runs, on a smaller tree. (`tests/cli` tests the rest of the command line.)"""
    command = ("run", "examples.code_audit.graph:graph", "--thread", "audit", "--db", "audit.db", "--input", "-")
    done = python(tmp_path, "-m", "pregel_async.cli", *command, input=json.dumps({"root": str(EXAMPLES)}))
    assert done.stdout.startswith(f"report: '{tmp_path / 'code-audit.md'}'")
    assert re.search(r"^superstep 2: audit_file, (\d+) of \1 tasks done", done.stderr, re.MULTILINE)
    assert (tmp_path / "code-audit.md").is_file()


class TestMean(ChannelLaws):
    """The channel of `05_custom_channel.py` obeys the laws of channels, as its docstring suggests to check."""

    folds = True
    commutes = True

    def make(self) -> Any:
        return import_module("examples.05_custom_channel").Mean()

    def updates(self) -> st.SearchStrategy[float]:
        return st.integers(-1000, 1000).map(float)  # whose sums are exact


@pytest.mark.parametrize("block", [pytest.param(code, id=f"line {line}") for line, code in blocks(README)])
def test_a_block_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    """The block runs by itself, unchanged, in an empty directory."""
    run_block(block, tmp_path)
