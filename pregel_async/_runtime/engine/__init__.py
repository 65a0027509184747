"""Run a graph: claim its thread, put the input on the board, execute supersteps, commit each."""
