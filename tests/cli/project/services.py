"""Services for the command line's tests. Each has its threads in `runs.db`, in the working directory."""

from __future__ import annotations

import flows

from checkpoint_savers import SqliteSaver
from pregel_async.service import RunService, Worker


def make() -> RunService:
    graphs = {
        name: getattr(flows, name).compile(name=name)
        for name in ("greeting", "asking", "waiting", "failing", "nasty", "blocking", "waiting_first")
    }
    return RunService(graphs, SqliteSaver.from_conn_string("runs.db"), work=Worker(slots=3))


service = make()
silent = RunService(
    {"failing": flows.failing.compile()}, SqliteSaver.from_conn_string("runs.db"), work=Worker(tracebacks=False)
)


def make_for(name: str) -> RunService:
    return make()


def make_none() -> None:
    return None
