"""How people work here: `nox -s lint types contracts tests`, and the longer sessions by name."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = ["commits", "lint", "types", "contracts", "tests"]
nox.options.default_venv_backend = "venv"

PYPROJECT = nox.project.load_toml("pyproject.toml")
EVERYWHERE = (
    "tests/runtime/test_cancellation_steps.py",
    "tests/durability/test_cancel_everywhere.py",
    "tests/durability/test_crash_points.py",
    "tests/durability/test_events_of_units.py",
    "tests/durability/test_stored_stream_modes.py",
    "tests/upgrades",
)
WITH_SDKS = (
    "tests/adapters",
    "tests/prebuilt",
    "tests/test_chat_service.py",
    "tests/failures/test_policies.py",
    "tests/test_examples.py",
    "tests/service/test_procrastinate.py",
    "tests/service/test_procrastinate_facts.py",
)
CODE = ("pregel_async", "checkpoint_savers", "tests", "examples", "docs/site_hooks.py", "noxfile.py")


def install(session: nox.Session, *groups: str) -> None:
    """The package as users get it, editable, with the tools of some groups."""
    session.install("-q", "--upgrade", "pip")
    session.install("-q", "-e", ".[cli,trio,serve,otel,postgres]", *nox.project.dependency_groups(PYPROJECT, *groups))


def pytest(session: nox.Session, *args: str, **env: str) -> None:
    # Tests start hundreds of processes. Without stored bytecode, each compiles both packages: 0.8 seconds, not 0.2.
    env = {"PYTHONDONTWRITEBYTECODE": "", **env}
    session.run("python", "-m", "pytest", *args, *session.posargs, env=env)


@nox.session(venv_backend="none")
def commits(session: nox.Session) -> None:
    """The subjects of the commits since the rule about them; as far as a shallow clone reaches."""
    session.run(sys.executable, "-m", "tests.architecture.commits", external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and format."""
    session.install("-q", *nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", "--quiet", *CODE)
    session.run("ruff", "format", "--check", "--quiet", *CODE)


@nox.session
def types(session: nox.Session) -> None:
    """mypy and pyright, both strict."""
    install(session, "test", "types")
    session.run("mypy")
    session.run("pyright")


@nox.session
def contracts(session: nox.Session) -> None:
    """The layers: who may import whom."""
    install(session, "test")
    session.run("lint-imports", "--verbose" if session.posargs else "--no-cache")


def workers() -> str:
    """One more than there are processors: a third of their time tests wait, for a disk, a server or another process."""
    return str((len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1)


@nox.session
def tests(session: nox.Session) -> None:
    """The whole suite, on this Python."""
    install(session, "test", "types")
    pytest(session, "-n", workers(), "-q")


@nox.session(python=["3.11", "3.12", "3.13"])
def pythons(session: nox.Session) -> None:
    """The whole suite, on every Python that is supported and installed."""
    install(session, "test", "types")
    pytest(session, "-n", "auto", "-q")


@nox.session
def savers(session: nox.Session) -> None:
    """The conformance suite and all other tests of the savers."""
    install(session, "test")
    pytest(session, "-n", "auto", "-q", "tests/savers")


@nox.session
def langchain(session: nox.Session) -> None:
    """Working with langchain-core and with orjson, where they are installed: the suite skips these tests."""
    install(session, "test")
    session.install("-q", "langchain", "langchain-core", "langgraph", "orjson")
    tests = ["tests/messages/test_langchain.py", "tests/messages/test_messages.py", "tests/test_doc_names.py"]
    tests += ["tests/questions/test_serialised_questions.py", "tests/langchain", "tests/prebuilt"]
    pytest(session, "-q", "-p", "no:langsmith_plugin", *tests)


@nox.session
def langgraph(session: nox.Session) -> None:
    """Programs written for LangGraph, run with both libraries, and threads imported from databases of its savers."""
    install(session, "test")
    packages = ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
    packages += ("langgraph-supervisor", "langgraph-swarm", "langchain-core", "langsmith", "langfuse")
    session.install("-q", *packages)
    tests = ["tests/langgraph_programs", "tests/from_langgraph"]
    tests.append("tests/cli/test_cli_langgraph_import.py")
    pytest(session, "-n", workers(), "-q", "-p", "no:langsmith_plugin", *tests)


@nox.session
def adapters(session: nox.Session) -> None:
    """Real SDKs of models, tools and agents, in versions that are pinned: the suite skips those not installed."""
    install(session, "test", "adapters")
    pytest(session, "-q", "-p", "no:langsmith_plugin", *WITH_SDKS)


@nox.session
def newest(session: nox.Session) -> None:
    """The session `adapters` with the newest versions of the SDKs. It reports what no longer works, and fails nothing
    in CI."""
    install(session, "test")
    packages = [re.split("[=<>]", each)[0] for each in nox.project.dependency_groups(PYPROJECT, "adapters")]
    session.install("-q", "--upgrade", "--upgrade-strategy", "eager", *packages)
    session.run("python", "-m", "pip", "list")
    pytest(session, "-q", "-p", "no:langsmith_plugin", *WITH_SDKS)


@nox.session
def fuzz(session: nox.Session) -> None:
    """A million damaged frames, thousands of damaged values of each saver, each law on thousands of random programs, a
    cancellation at every step of a run, and a crash at every call of a saver. PREGEL_FUZZ, PREGEL_DAMAGES,
    PREGEL_CRASHES, PREGEL_LAWS, PREGEL_STEPS and PREGEL_EVERY say other numbers."""
    install(session, "test")
    counts = {"FUZZ": 1_000_000, "DAMAGES": 5000, "CRASHES": 100, "LAWS": 3000, "STEPS": 100_000, "EVERY": 1}
    env = {f"PREGEL_{name}": os.environ.get(f"PREGEL_{name}", str(count)) for name, count in counts.items()}
    savers = [f"tests/savers/test_{name}.py" for name in ("fuzz", "fuzz_rows", "conformance")]
    # Stolen work: one law takes as long as a thousand other tests, and the tests behind it would wait for its worker.
    pytest(session, "-n", "auto", "--dist", "worksteal", "-q", *savers, "tests/laws", *EVERYWHERE, **env)


@nox.session
def kills(session: nox.Session) -> None:
    """Two thousand kills of real processes in each durability mode (PREGEL_KILLS says another number), and how many
    supersteps they lost; and a quarter as many of processes that readers come back to, and kills and pauses among
    processes that share one file; and two thousand kills of two versions of a graph that share a SQLite database, and
    a quarter as many on PostgreSQL."""
    install(session, "test")
    count, tmp = os.environ.get("PREGEL_KILLS", "2000"), session.create_tmp()
    losses, rolled = os.path.join(tmp, "losses"), os.path.join(tmp, "rolled")
    kills, rolling = "tests/durability/test_kills.py", "tests/upgrades/test_rolling.py"
    try:
        pytest(session, "-n", "auto", "-q", kills, PREGEL_KILLS=count, PREGEL_LOSSES=losses)
        session.run("python", kills, losses, env={"PYTHONPATH": "."})
        pytest(session, "-n", "auto", "-q", "tests/durability/test_killed_readers.py", PREGEL_KILLS=count)
        pytest(session, "-n", "auto", "-q", "tests/savers/test_sqlite_rivals.py", PREGEL_KILLS=str(int(count) // 4))
        pytest(session, "-n", "auto", "-q", rolling, PREGEL_KILLS=count, PREGEL_ROLLED=rolled)
        session.run("python", rolling, rolled, env={"PYTHONPATH": "."})
    finally:
        for path in filter(os.path.exists, (losses, rolled)):
            os.remove(path)


@nox.session
def storms(session: nox.Session) -> None:
    """Workers and a client of one service, and a thousand kills, pauses and restarts of the workers (`-- --count N
    --saver sqlite|postgres`): reports runs that were lost, doubled or wrong."""
    install(session, "test")
    session.run("python", "-m", "tests.storms", *session.posargs)


@nox.session
def planted(session: nox.Session) -> None:
    """Takes away, one at a time, the lines that keep the promises: the suite must notice each (`-- --only NAME`)."""
    install(session, "test")
    session.run("python", "-m", "tests.planted.run", *session.posargs)


@nox.session
def simulate(session: nox.Session) -> None:
    """Fifty thousand random programs under seeded schedules, faults and crashes (PREGEL_SIMULATIONS: how many)."""
    install(session, "test")
    count = os.environ.get("PREGEL_SIMULATIONS", "50000")
    pytest(session, "-n", "auto", "-q", "tests/simulation", PREGEL_SIMULATIONS=count)


@nox.session
def coverage(session: nox.Session) -> None:
    """Branch coverage: all of the algorithm, the channels and the codec; the rest is told."""
    install(session, "test", "types", "coverage")
    session.run("coverage", "erase")
    covered = [f"tests/{name}" for name in ("core", "channels", "savers", "graphs", "values", "threads", "questions")]
    covered += [f"tests/{name}" for name in ("tasks", "nodes", "failures", "streams", "messages", "sync")]
    session.run("coverage", "run", "-m", "pytest", "-q", *covered)
    session.run("coverage", "combine", "--quiet")
    held = "pregel_async/_core/*,pregel_async/channels/*,checkpoint_savers/codec/*"
    session.run("coverage", "report", "--include", held, "--fail-under", "100")
    session.run("coverage", "report")


@nox.session
def examples(session: nox.Session) -> None:
    """Every example, the tutorial, and every block of README and docs."""
    install(session, "test")
    tests = [f"tests/test_{name}.py" for name in ("examples", "tutorial", "docs", "chat_service")]
    pytest(session, "-n", "auto", "-q", *tests, "tests/serve/test_background_service.py")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site, in site/: a warning fails, and so do a lost link and a name without an entry."""
    session.install("-q", *nox.project.dependency_groups(PYPROJECT, "docs"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    # Without the settings of the suite, whose plugins need the package and its extras.
    alone = ("-c", os.devnull, "--rootdir", ".", "--noconftest", "-p", "no:cacheprovider")
    session.run("python", "-m", "pytest", "-q", *alone, "tests/site", env={"PREGEL_SITE": os.path.abspath("site")})


@nox.session
def browser(session: nox.Session) -> None:
    """The pages of examples/ in a headless Chromium, which is to be installed; and a picture for docs."""
    install(session, "test", "browser")
    env = {"PREGEL_BROWSER": "yes", "PREGEL_SCREENSHOT": "docs/chat_service.png"}
    pytest(session, "-q", "tests/browser", **env)


@nox.session
def release(session: nox.Session) -> None:
    """Build the wheel and the sdist in dist/, and try both in new environments, the wheel by README's command."""
    version = PYPROJECT["project"]["version"]
    session.install("-q", "build", "twine")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist")
    wheel, sdist = f"dist/pregel_async-{version}-py3-none-any.whl", f"dist/pregel_async-{version}.tar.gz"
    session.run("twine", "check", "--strict", wheel, sdist)
    install = re.search(r"<!-- install command -->\n```sh\npip (install .+)\n```", Path("README.md").read_text("utf-8"))
    if install is None:
        session.error("README.md has no install command")
    for arguments, extras in ((shlex.split(install[1]), ("cli",)), (["install", sdist], ())):
        folder = Path(session.create_tmp()).resolve() / "fresh"
        session.run("python", "-m", "venv", "--clear", str(folder))
        python = str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")
        session.run(python, "-m", "pip", *arguments, "-q", external=True)
        # -I: neither the checkout nor its tests can be imported.
        session.run(python, "-I", "tests/helpers/release_smoke.py", version, *extras, external=True)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: audit the standard library of this Python, durably."""
    session.install("-q", "-e", ".[cli]")
    session.run("pregel-async", "run", "examples.code_audit.graph:graph", "--thread", "demo", "--db", "demo.db")


@nox.session
def bench(session: nox.Session) -> None:
    """Side by side with other engines and the bare limit, within half an hour; writes docs/benchmarks.md and its plots.
    Arguments go to tests/bench/run.py: `-- --only chain,loop --rounds 3` shows a part and writes nothing."""
    session.install("-q", "-e", ".[trio,postgres]", "psycopg[binary]", "uvloop", "pytest")
    session.install("-q", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
    session.install("-q", "pydantic-graph", "agent-framework-core")
    session.run("python", "-m", "tests.bench", *session.posargs)


@nox.session
def sse(session: nox.Session) -> None:
    """A thousand readers of one service process: memory, and times to the first chunk and to the end."""
    session.install("-q", "-e", ".[serve]", "uvicorn")
    session.run("python", "tests/bench/sse.py", *session.posargs)
