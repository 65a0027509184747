"""Internals of the public objects: run graphs, and read, edit and draw them and their threads."""
