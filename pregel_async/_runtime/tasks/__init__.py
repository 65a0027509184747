"""Run one task: its input, policies, worker thread, calls and the context that its code sees."""
