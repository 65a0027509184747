"""A package, with relative imports in it."""
