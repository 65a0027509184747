"""Internals of the public objects: run graphs, read and edit threads, and check what users pass in."""
