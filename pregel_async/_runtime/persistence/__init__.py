"""Write and read a thread of a run: its lease, its namespaces, and what goes into each transaction."""
