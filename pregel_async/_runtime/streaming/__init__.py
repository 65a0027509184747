"""Show a run: publish events, buffer them for readers, store them, and replay them to readers that reconnect."""
