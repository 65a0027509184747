"""Where the algorithm meets the world: event loops, worker threads, storage, streams. anyio begins here."""
