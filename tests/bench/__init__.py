"""Workloads on several engines, compared: `nox -s bench` writes docs/benchmarks.md."""
