"""Run a graph: acquire its thread's lease, put the input on the board, execute supersteps, commit each."""
