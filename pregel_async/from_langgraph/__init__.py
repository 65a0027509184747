"""Import threads from the databases of langgraph-checkpoint-sqlite and langgraph-checkpoint-postgres.

    async with SqliteSaver.from_conn_string("threads.db") as saver:
        graph = builder.compile(saver)
        async for report in import_threads(graph, "langgraph.db"):
            print(report.thread_id, report.status, report.lost)

The command `pregel-async threads import --from-langgraph` does the same.
"""

from .importing import ImportStatus, ThreadReport, import_threads
from .mapping import ImportedQuestion
from .stored import LangGraphNotInstalledError, NotLangGraphError

__all__ = [
    "ImportStatus",
    "ImportedQuestion",
    "LangGraphNotInstalledError",
    "NotLangGraphError",
    "ThreadReport",
    "import_threads",
]
