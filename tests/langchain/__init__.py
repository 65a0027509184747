"""Graphs and langchain-core: callbacks, runnables and event streams."""
