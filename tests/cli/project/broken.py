"""A module that cannot be imported."""

raise LookupError("broken on purpose")
