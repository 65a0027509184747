"""Run graphs from code without an event loop, and from code that blocks one."""
