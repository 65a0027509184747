"""Event loops, clocks, ids and randomness: what differs between machines and between runs."""
