"""Audit a tree of Python sources: one task per file, folded into a report, durable while it runs.

Start reading with `graph.py`, which defines the steps. `sources.py`, `audit.py`, `imports.py`, `ranking.py` and
`report.py` are plain functions that do not depend on graphs.
"""
