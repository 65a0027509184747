"""Run the algorithm of `_core` on event loops, threads, storage and streams. The lowest layer that imports anyio."""
