"""Drawings: the content of each output format, and expanded subgraphs. The layout has tests of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from pregel_async import END, START
from pregel_async.drawing import Drawing, Edge, drawing

SVG = "{http://www.w3.org/2000/svg}"
ODD = [
    'say "hi"',
    "a<b>&c",
    "C#; x",
    "`tick`",
    "名前",
    "e\u0301te\u0301",
    "two\nlines",
    "\x1b[31mred",
    "\x00",
    "🦜",
    "--> x",
    "]]",
]


def edge(source: str, target: str, label: str | None = None, *, conditional: bool | None = None) -> Edge:
    return Edge(
        source=source, target=target, label=label, conditional=label is not None if conditional is None else conditional
    )


def agent() -> Drawing:
    return drawing(
        ["agent", "tools"],
        [edge(START, "agent"), edge("agent", "tools", "go on"), edge("agent", END, "end"), edge("tools", "agent")],
        interrupt_before=["tools"],
    )


def with_graph() -> Drawing:
    """Return a graph with the agent as a node between two others, which may run again."""
    return drawing(
        ["ask", "work", "check"],
        [
            edge(START, "ask"),
            edge("ask", "work", "clear"),
            edge("work", "check"),
            edge("check", "work", "no"),
            edge("check", END),
        ],
        ["check", "work"],
        interrupt_after=["work"],
        subgraphs={"work": agent()},
    )


def said(edges: tuple[Edge, ...]) -> list[str]:
    return [
        f"{one.source} {'?' if one.conditional else '-'} {one.target}" + (f" [{one.label}]" if one.label else "")
        for one in edges
    ]


def test_a_line_of_nodes_as_text() -> None:
    drawn = drawing(["one", "two"], [edge(START, "one"), edge("one", "two"), edge("two", END)])
    assert (
        drawn.draw_text()
        == """\
╭───────────╮
│ __start__ │
╰─────┬─────╯
      ▼
   ┌─────┐
   │ one │
   └──┬──┘
      ▼
   ┌─────┐
   │ two │
   └──┬──┘
      ▼
 ╭─────────╮
 │ __end__ │
 ╰─────────╯
"""
    )


def test_a_loop_and_labels_as_text() -> None:
    """Conditional edges are dotted and labelled, the edge back is at the side, and breakpoints are marked."""
    assert (
        agent().draw_text()
        == """\
             ╭───────────╮
             │ __start__ │
             ╰─────┬─────╯
                   │ ┌──────────────┐
                   ▼ ▼              │
               ┌───────┐            │
               │ agent │            │
               └─┬──┬──┘            │
              ┌╌╌┘  └╌╌╌┐           │
              ┆         ┆           │
            go on      end          │
              ▼         ▼           │
┌──────────────────┐   ╭─────────╮  │
│      tools       │   │ __end__ │  │
│ interrupt before │   ╰─────────╯  │
└────────┬─────────┘                │
         └──────────────────────────┘
"""
    )


def test_the_same_in_ascii() -> None:
    """In ASCII a plus is a corner, and a horizontal line passes behind a vertical one."""
    assert (
        agent().draw_ascii()
        == agent().draw_text(ascii=True)
        == """\
             .-----------.
             | __start__ |
             .-----+-----.
                   | +--------------+
                   v v              |
               +-------+            |
               | agent |            |
               +-+--+--+            |
              +..+  +...+           |
              :         :           |
            go on      end          |
              v         v           |
+------------------+   .---------.  |
|      tools       |   | __end__ |  |
| interrupt before |   .---------.  |
+--------+---------+                |
         +--------------------------+
"""
    )


def test_a_graph_within_a_graph_as_text() -> None:
    """A node that is a graph has a double border; expanded, the border surrounds its nodes."""
    assert (
        with_graph().draw_text()
        == """\
        ╭───────────╮
        │ __start__ │
        ╰─────┬─────╯
              ▼
           ┌─────┐
           │ ask │
           └──┬──┘
              ┆
            clear
              ┆   ┌╌╌╌╌╌╌╌╌╌╌╌╌┐
              ▼   ▼            ┆
╔═══════════════════════════╗  ┆
║           work            ║  ┆
║ deferred, interrupt after ║  ┆
╚═════════════╤═════════════╝  ┆
              ▼                ┆
         ┌──────────┐          ┆
         │  check   │         no
         │ deferred │          ┆
         └──┬───┬───┘          ┆
            │   └╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘
            ▼
          ╭─────────╮
          │ __end__ │
          ╰─────────╯
"""
    )
    assert (
        with_graph().expanded().draw_text()
        == """\
                                   ╭───────────╮
                                   │ __start__ │
                                   ╰─────┬─────╯
                                         ▼
                                      ┌─────┐
                                      │ ask │
                                      └──┬──┘
                                         ┆
                                       clear
                                         ┆
╔══ work (deferred, interrupt after) ════┆════════════════════╗
║                                     ┌╌╌┼╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┐  ║
║                                     ┆ ┌┼─────────────┐   ┆  ║
║                                     ▼ ▼▼             │   ┆  ║
║                                 ┌───────┐            │   ┆  ║
║                                 │ agent │            │   ┆  ║
║                                 └─┬──┬──┘            │   ┆  ║
║                               ┌╌╌╌┘  └╌┐             │   ┆  ║
║                               ┆        ┆             │   ┆  ║
║                              end     go on           │   ┆  ║
║                            ┌╌╌┘        ┆             │   ┆  ║
║                            ┆           ▼             │   ┆  ║
║                            ┆  ┌──────────────────┐   │   ┆  ║
║                            ┆  │      tools       │   │   ┆  ║
║                            ┆  │ interrupt before │   │   ┆  ║
║                            ┆  └────────┬─────────┘   │   ┆  ║
║                            ┆           └─────────────┘   ┆  ║
║                            ┆                       ┌╌╌╌╌╌┘  ║
║                            ┆                       ┆        ║
╚════════════════════════════┆═══════════════════════┆════════╝
                             └╌╌┐                ┌╌╌╌┘
                                ┆                ┆
                                ┆                ┆
                                ▼                ┆
                           ┌──────────┐          ┆
                           │  check   │         no
                           │ deferred │          ┆
                           └──┬───┬───┘          ┆
                              │   └╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘
                              ▼
                            ╭─────────╮
                            │ __end__ │
                            ╰─────────╯
"""
    )


def test_a_node_that_runs_itself_again_as_text() -> None:
    assert (
        drawing(["a"], [edge("a", "a"), edge("a", "a", "again")]).draw_text()
        == """\
  ┌────────────────┐
  │ ┌╌╌╌╌╌╌╌┐      │
  ▼ ▼       ┆      │
┌─────┐     ┆      │
│  a  │   again    │
└─┬─┬─┘     ┆      │
  │ └╌╌╌╌╌╌╌┘      │
  └────────────────┘
"""
    )


def test_what_is_too_wide_is_listed() -> None:
    """A drawing that is too wide becomes a list with the same content."""
    wide = drawing(
        [f"worker_{number}" for number in range(12)] + ["plan", "odd"],
        [edge(START, "plan"), *(edge("plan", f"worker_{number}", str(number)) for number in range(12))]
        + [edge("worker_3", "plan"), edge("odd", "odd", conditional=True)],
        ["worker_3"],
        interrupt_before=["worker_3"],
        subgraphs={"worker_4": agent()},
    )
    text = wide.draw_text()
    assert max(map(len, text.splitlines())) < 80
    assert text.startswith("__start__\n  ─▶ plan\nodd\n  ╌▶ odd ↑\nplan\n  ╌▶ worker_0 [0]\n")
    assert "\nworker_3 (deferred, interrupt before)\n  ─▶ plan ↑\nworker_4 (graph)\n" in text
    assert text.count("▶") == len(wide.edges)
    assert wide.draw_text(width=None).count("▼") == len(wide.edges)
    assert "  -> plan ^\n" in wide.draw_ascii()


def test_text_is_as_wide_as_it_says() -> None:
    """Boxes that are one column too wide become a list."""
    text = with_graph().draw_text(width=None)
    wide = max(map(len, text.splitlines()))
    assert with_graph().draw_text(width=wide) == text
    assert "─▶" in with_graph().draw_text(width=wide - 1)


@pytest.mark.parametrize("name", ODD)
def test_names_of_all_kinds_as_text(name: str) -> None:
    """A drawing sends no invisible character of a name to the terminal, and an ASCII drawing is pure ASCII."""
    drawn = drawing([name], [edge(START, name), edge(name, END, name)])
    for text in (drawn.draw_text(), drawn.draw_text(width=1)):
        assert all(line.isprintable() for line in text.splitlines())
    assert drawn.draw_ascii().isascii() and drawn.draw_ascii(width=1).isascii()


def test_wide_characters_keep_the_borders_straight() -> None:
    """The width of a name is measured in columns, not characters."""
    lines = drawing(["e\u0301", "名前"], []).draw_text().splitlines()
    assert lines == ["┌───┐   ┌──────┐", "│ e\u0301 │   │ 名前 │", "└───┘   └──────┘"]


def test_nothing_as_text() -> None:
    assert drawing([], []).draw_text() == ""


def test_mermaid() -> None:
    """A flowchart with the marks next to the names."""
    assert with_graph().draw_mermaid() == (
        "flowchart TD\n"
        '    n0___start__(["__start__"])\n'
        '    n1_ask["ask"]\n'
        '    n2_check["check (deferred)"]\n'
        '    n3_work[["work (deferred, interrupt after)"]]\n'
        '    n4___end__(["__end__"])\n'
        "    n0___start__ --> n1_ask\n"
        '    n1_ask -.->|"clear"| n3_work\n'
        '    n2_check -.->|"no"| n3_work\n'
        "    n2_check --> n4___end__\n"
        "    n3_work --> n2_check\n"
    )


def test_mermaid_has_clusters() -> None:
    """An expanded node is a cluster within its parent's cluster."""
    outer = drawing(["run"], [edge(START, "run"), edge("run", END)], subgraphs={"run": with_graph()})
    assert (
        outer.expanded().draw_mermaid()
        == """\
flowchart TD
    n0___start__(["__start__"])
    subgraph g0_run["run"]
        subgraph g1_run_work["work (deferred, interrupt after)"]
            n3_run_work_agent["agent"]
            n4_run_work_tools["tools (interrupt before)"]
        end
        n1_run_ask["ask"]
        n2_run_check["check (deferred)"]
    end
    n5___end__(["__end__"])
    n0___start__ --> n1_run_ask
    n1_run_ask -.->|"clear"| n3_run_work_agent
    n2_run_check -.->|"no"| n3_run_work_agent
    n2_run_check --> n5___end__
    n3_run_work_agent -.->|"end"| n2_run_check
    n3_run_work_agent -.->|"go on"| n4_run_work_tools
    n4_run_work_tools --> n3_run_work_agent
"""
    )


@pytest.mark.parametrize("name", ODD)
def test_names_of_all_kinds_in_mermaid(name: str) -> None:
    """A name stays between its quotes and on its line, and so does a label."""
    lines = drawing([name], [edge(name, name, name)]).draw_mermaid().splitlines()
    assert len(lines) == 3
    assert lines[1].count('"') == 2 and lines[1].startswith("    n0_") and lines[1].endswith('"]')
    assert lines[2].count('"') == 2 and '|"' in lines[2] and '"|' in lines[2]
    assert not {"<", "`", "\n", "\x1b"} & set(lines[1])


def texts(image: ElementTree.Element) -> list[str]:
    return [found.text or "" for found in image.iter(f"{SVG}text")]


def test_svg_shows_nodes_edges_labels_and_marks() -> None:
    image = ElementTree.fromstring(with_graph().expanded().draw_svg())
    assert image.tag == f"{SVG}svg"
    assert [found.get("data-node") for found in image.iter(f"{SVG}g") if found.get("data-node")] == [
        START, "ask", "work:agent", "work:tools", "check", END,
    ]  # fmt: skip
    assert set(texts(image)) == {
        START, "ask", "agent", "tools", "check", END, "clear", "go on", "end", "no", "deferred", "interrupt before",
        "work (deferred, interrupt after)",
    }  # fmt: skip
    assert sorted(found.text or "" for found in image.iter(f"{SVG}title")) == sorted(
        f"{one.source} → {one.target}" + (f" [{one.label}]" if one.label else "")
        for one in with_graph().expanded().edges
    )
    dashed = [found for found in image.iter(f"{SVG}path") if found.get("stroke-dasharray")]
    assert len(dashed) == sum(one.conditional for one in with_graph().expanded().edges)


def test_svg_stands_alone() -> None:
    """The SVG runs and loads nothing and has no ids; it is readable in light and dark mode."""
    text = with_graph().draw_svg()
    image = ElementTree.fromstring(text)
    assert {found.tag.removeprefix(SVG) for found in image.iter()} <= {
        "svg",
        "style",
        "rect",
        "g",
        "title",
        "path",
        "text",
    }
    assert text.count("http") == 1 and "url(" not in text and "@import" not in text
    assert not any("id" in found.attrib or "href" in found.attrib for found in image.iter())
    style = next(image.iter(f"{SVG}style")).text or ""
    assert style.startswith("@media (prefers-color-scheme: dark)")
    used = {found.get("class") for found in image.iter()} - {None, "pregel-graph"}
    assert used and all(f".pregel-graph .{kind} " in style for kind in used)


@pytest.mark.parametrize("name", ODD)
def test_names_of_all_kinds_in_svg(name: str) -> None:
    """The SVG is valid XML for any name, and shows the name."""
    drawn = drawing([name], [edge(name, name, name)], interrupt_before=[name], subgraphs={name: drawing([name], [])})
    for one in (drawn, drawn.expanded()):
        image = ElementTree.fromstring(one.draw_svg())
        assert name in texts(image) or not name.isprintable()


def test_a_notebook_shows_it() -> None:
    """A notebook gets the image, and text for front ends without images."""
    drawn = agent()
    assert drawn._repr_svg_() == drawn.draw_svg()
    assert drawn._repr_mimebundle_() == {"image/svg+xml": drawn.draw_svg(), "text/plain": drawn.draw_text()}
    assert set(drawn._repr_mimebundle_(include=["text/plain", "text/html"])) == {"text/plain"}
    assert set(drawn._repr_mimebundle_(exclude=["text/plain"])) == {"image/svg+xml"}


def test_json() -> None:
    """JSON lists nodes with their special properties, and edges, without empty fields."""
    assert with_graph().to_json() == {
        "nodes": [
            {"id": "__start__", "type": "start", "data": {"name": "__start__"}},
            {"id": "ask", "type": "node", "data": {"name": "ask"}},
            {"id": "check", "type": "node", "data": {"name": "check"}, "metadata": {"defer": True}},
            {"id": "work", "type": "graph", "data": {"name": "work"}, "metadata": {"defer": True, "__interrupt": "after"}},
            {"id": "__end__", "type": "end", "data": {"name": "__end__"}},
        ],
        "edges": [
            {"source": "__start__", "target": "ask"},
            {"source": "ask", "target": "work", "data": "clear", "conditional": True},
            {"source": "check", "target": "work", "data": "no", "conditional": True},
            {"source": "check", "target": "__end__"},
            {"source": "work", "target": "check"},
        ],
    }  # fmt: skip


def test_json_of_an_expanded_drawing_has_groups() -> None:
    found = with_graph().expanded().to_json()
    assert found["groups"] == [
        {"id": "work", "type": "graph", "data": {"name": "work"}, "metadata": {"defer": True, "__interrupt": "after"}}
    ]
    assert {"id": "work:tools", "type": "node", "data": {"name": "tools"}, "group": "work", "metadata": {"__interrupt": "before"}} in found["nodes"]  # fmt: skip
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("name", ODD)
def test_names_of_all_kinds_in_json(name: str) -> None:
    """Names are unchanged."""
    both = drawing([name], [edge(name, name, name)], interrupt_before=[name], interrupt_after=[name]).to_json()
    assert json.loads(json.dumps(both)) == both
    assert both["nodes"][0]["id"] == both["edges"][0]["data"] == name
    assert both["nodes"][0]["metadata"] == {"__interrupt": "before,after"}


def test_a_graph_takes_the_place_of_its_node() -> None:
    """Edges to an expanded node lead to the subgraph's start, and edges from it begin at the subgraph's end."""
    drawn = with_graph().expanded()
    assert drawn.nodes == (START, "ask", "check", "work:agent", "work:tools", END)
    assert said(drawn.edges) == [
        "__start__ - ask",
        "ask ? work:agent [clear]",
        "check ? work:agent [no]",
        "check - __end__",
        "work:agent ? check [end]",
        "work:agent ? work:tools [go on]",
        "work:tools - work:agent",
    ]
    assert drawn.groups == {"work": ("work:agent", "work:tools")}
    assert (drawn.deferred, drawn.interrupt_before, drawn.interrupt_after) == (
        {"check", "work"}, {"work:tools"}, {"work"},
    )  # fmt: skip
    assert drawn.subgraphs == {}


def test_labels_of_edges_that_are_joined_are_both_kept() -> None:
    inner = drawing(
        ["x", "y"], [edge(START, "x", "big"), edge(START, "y", conditional=True), edge("x", END), edge("y", END)]
    )
    outer = drawing(["n"], [edge(START, "n", "go"), edge("n", END)], subgraphs={"n": inner})
    assert said(outer.expanded().edges) == [
        "__start__ ? n:x [go / big]", "__start__ ? n:y [go]", "n:x - __end__", "n:y - __end__",
    ]  # fmt: skip


def nested() -> Drawing:
    low = drawing(["z"], [edge(START, "z"), edge("z", END)], ["z"])
    middle = drawing(["y", "x"], [edge(START, "y"), edge("y", "x"), edge("x", END)], subgraphs={"y": low})
    return drawing(["n", "m"], [edge(START, "n"), edge("n", "m"), edge("m", END)], subgraphs={"n": middle, "m": low})


def test_depth_of_expansion() -> None:
    """Expanding by two levels equals expanding by one level twice."""
    drawn = nested()
    assert drawn.expanded(0) is drawn and drawn.expanded(False) is drawn
    one = drawn.expanded(1)
    assert one.nodes == (START, "m:z", "n:x", "n:y", END)
    assert set(one.subgraphs) == {"n:y"} and set(one.groups) == {"m", "n"}
    two = drawn.expanded(2)
    assert two.nodes == (START, "m:z", "n:x", "n:y:z", END)
    assert two.groups == {"n": ("n:y", "n:x"), "n:y": ("n:y:z",), "m": ("m:z",)}
    assert two.deferred == {"m:z", "n:y:z"}
    assert said(two.edges) == ["__start__ - n:y:z", "m:z - __end__", "n:x - m:z", "n:y:z - n:x"]
    assert two == drawn.expanded() == drawn.expanded(True) == drawn.expanded(9)
    again = one.expanded(1)
    assert (again.nodes, again.edges, set(again.groups)) == (two.nodes, two.edges, set(two.groups))
    assert again.draw_svg() == two.draw_svg()


def test_a_graph_that_names_no_start_and_no_end() -> None:
    """Nodes without incoming edges are the start, nodes without outgoing edges the end; in a loop, the first and the
    last node."""
    line = drawing(["a", "b", "c"], [edge("a", "b"), edge("b", "b")])
    loop = drawing(["a", "b"], [edge("a", "b"), edge("b", "a")])
    for inner, expected in (
        (line, ["__start__ - n:a", "__start__ - n:c", "n:a - n:b", "n:b - n:b", "n:b - __end__", "n:c - __end__"]),
        (loop, ["__start__ - n:a", "n:a - n:b", "n:b - n:a", "n:b - __end__"]),
    ):
        outer = drawing(["n"], [edge(START, "n"), edge("n", END)], subgraphs={"n": inner})
        assert said(outer.expanded().edges) == expected


def test_a_graph_that_may_end_at_once() -> None:
    """If a subgraph may end at once, its predecessors also lead to its successors, and a loop around it does not become
    an edge from a node to itself."""
    inner = drawing(["x"], [edge(START, "x", "some"), edge(START, END, "none"), edge("x", END)])
    outer = drawing(["n", "m"], [edge(START, "n"), edge("n", "n", "again"), edge("n", "m")], subgraphs={"n": inner})
    assert said(outer.expanded().edges) == [
        "__start__ ? m [none]",
        "__start__ ? n:x [none / again / some]",
        "__start__ ? n:x [some]",
        "n:x - m",
        "n:x ? n:x [again / some]",
    ]


def test_a_graph_of_nothing_stays_a_node() -> None:
    outer = drawing(["n"], [edge(START, "n")], subgraphs={"n": drawing([], [edge(START, END)])})
    assert outer.expanded() == outer


def test_a_name_that_is_taken_stays_a_node() -> None:
    """A node with the same name as an inner node is never mistaken for it."""
    outer = drawing(["n", "n:x"], [edge("n", "n:x")], subgraphs={"n": drawing(["x"], [])})
    assert outer.expanded() == outer


def test_a_graph_that_contains_itself_ends() -> None:
    """A graph that contains itself is expanded once and is a node within."""
    graphs: dict[str, Drawing] = {}
    outer = Drawing(nodes=("n", "m"), edges=(edge("n", "m"),), subgraphs=graphs)
    graphs["m"] = Drawing(nodes=("k",), edges=(), subgraphs={"k": outer})
    drawn = outer.expanded()
    assert drawn.nodes == ("n", "m:k")
    assert drawn.draw_text().count("═") > 0


def test_nothing_of_drawing_is_loaded_before_it_is_used() -> None:
    """`import pregel_async` loads no renderer."""
    code = "import sys, pregel_async; print([name for name in sys.modules if name.startswith('pregel_async.drawing')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
