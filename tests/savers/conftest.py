"""The fixtures of tests of PostgreSQL."""

from tests.helpers.postgres_fixtures import proxy, schema

__all__ = ["proxy", "schema"]
