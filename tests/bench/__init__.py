"""Workloads x engines, side by side: `nox -s bench` writes docs/benchmarks.md."""
