"""The tables of accepted runs: their columns, and the statements that make them.

A run's row and the row that a thread with runs has are stored as frames, whose checksum detects damage. The other
columns are copies of what statements filter and sort by; `run_rows` writes and compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

RUN_TABLES: Mapping[str, Mapping[str, str]] = {
    "pregel_runs": {
        "run_id": "text",
        "thread_id": "text",
        "seq": "bigint",
        "status": "text",
        "hidden": "boolean",
        "assistant": "text",
        "idempotency_key": "text",
        "created_at": "double precision",
        "metadata": "jsonb",
        "payload": "bytea",
        "frame": "bytea",
    },
    "pregel_run_threads": {
        "thread_id": "text",
        "status": "text",
        "assistant": "text",
        "activation": "text",
        "activation_no": "bigint",
        "activation_at": "double precision",
        "priority": "bigint",
        "route": "text",
        "wake_at": "double precision",
        "created_at": "double precision",
        "updated_at": "double precision",
        "state": "jsonb",
        "content": "bytea",
        "frame": "bytea",
    },
}
"""The columns of the tables, with their types."""

METADATA_AS_JSON = (
    r"(CASE WHEN strpos(metadata, E'\\u000') = 0 THEN metadata ELSE regexp_replace(regexp_replace(metadata, "
    r"E'(?<!\\\\)((?:\\\\\\\\)*)\\\\u0001', E'\\1\\\\u0001\\\\u0002', 'g'), "
    r"E'(?<!\\\\)((?:\\\\\\\\)*)\\\\u0000', E'\\1\\\\u0001\\\\u0001', 'g') END)::jsonb"
)
"""A thread's metadata as `jsonb`, in which texts are escaped as by `escaping`: `jsonb` cannot hold NUL.

An expression and no column of its own, so that there is one place for a thread's metadata. An index is made over it, so
a statement must have it literally to use that index."""

# Lapsed leases are found among the active threads, of which there are few: an index of `pregel_threads` by owner or
# expiry would get a new entry with each commit, as commits renew leases.
#
# Runs are searched with `NOT hidden`. The indexes of searches hold such rows alone, so that a count by status reads the
# index and not the table, except for pages that were changed since VACUUM has seen them. By default, autovacuum waits
# until a fifth of the rows have changed, and a count reads most of the table then: hence the smaller factor. An index
# of `status` alone would halve the time of a count, for a further index entry with each change of a thread's row.
#
# `pregel_run_threads_by_assistant` is for assistants with few threads: without it, a page of them is found by reading
# all threads.
RUN_MIGRATION: tuple[str, ...] = (
    """
        CREATE TABLE {s}.pregel_runs (
            run_id text COLLATE "C" PRIMARY KEY,
            thread_id text COLLATE "C" NOT NULL,
            seq bigint NOT NULL,
            status text NOT NULL,
            hidden boolean NOT NULL,
            assistant text COLLATE "C" NOT NULL,
            idempotency_key text COLLATE "C",
            created_at double precision NOT NULL,
            metadata jsonb NOT NULL,
            payload bytea NOT NULL,
            frame bytea NOT NULL
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
        """,
    """
        CREATE INDEX pregel_runs_open ON {s}.pregel_runs (thread_id) WHERE status IN ('pending', 'running')
        """,
    """
        CREATE INDEX pregel_runs_by_thread ON {s}.pregel_runs (thread_id, created_at, run_id)
        """,
    """
        CREATE INDEX pregel_runs_by_status ON {s}.pregel_runs (status, created_at, run_id) WHERE NOT hidden
        """,
    """
        CREATE INDEX pregel_runs_by_age ON {s}.pregel_runs (created_at, run_id) WHERE NOT hidden
        """,
    """
        CREATE UNIQUE INDEX pregel_runs_by_key ON {s}.pregel_runs (idempotency_key) WHERE idempotency_key IS NOT NULL
        """,
    """
        CREATE INDEX pregel_runs_by_metadata ON {s}.pregel_runs USING gin (metadata jsonb_path_ops)
        """,
    """
        CREATE TABLE {s}.pregel_run_threads (
            thread_id text COLLATE "C" PRIMARY KEY,
            status text NOT NULL DEFAULT '',
            assistant text COLLATE "C" NOT NULL DEFAULT '',
            activation text NOT NULL DEFAULT 'none',
            activation_no bigint NOT NULL DEFAULT 0,
            activation_at double precision NOT NULL DEFAULT 0,
            priority bigint NOT NULL DEFAULT 0,
            route text COLLATE "C" NOT NULL DEFAULT '',
            wake_at double precision NOT NULL DEFAULT 0,
            created_at double precision NOT NULL DEFAULT 0,
            updated_at double precision NOT NULL DEFAULT 0,
            state jsonb,
            content bytea NOT NULL DEFAULT '',
            frame bytea NOT NULL DEFAULT ''
        ) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02)
        """,
    """
        CREATE INDEX pregel_run_threads_queued ON {s}.pregel_run_threads (priority DESC, activation_at)
            WHERE activation = 'queued'
        """,
    """
        CREATE INDEX pregel_run_threads_active ON {s}.pregel_run_threads (activation_at) WHERE activation = 'active'
        """,
    """
        CREATE INDEX pregel_run_threads_waking ON {s}.pregel_run_threads (wake_at) WHERE wake_at > 0
        """,
    """
        CREATE INDEX pregel_run_threads_by_status ON {s}.pregel_run_threads (status, updated_at, thread_id)
        """,
    """
        CREATE INDEX pregel_run_threads_by_assistant ON {s}.pregel_run_threads (assistant, updated_at, thread_id)
        """,
    """
        CREATE INDEX pregel_run_threads_by_update ON {s}.pregel_run_threads (updated_at, thread_id)
        """,
    """
        CREATE INDEX pregel_run_threads_by_creation ON {s}.pregel_run_threads (created_at, thread_id)
        """,
    f"CREATE INDEX pregel_threads_by_metadata ON {{s}}.pregel_threads USING gin (({METADATA_AS_JSON}) jsonb_path_ops)",
    "UPDATE {s}.pregel_saver_version SET version = 2",
)
"""Statements that upgrade a saver's tables of version 1 to 2. The rows of version 1 are not changed."""
