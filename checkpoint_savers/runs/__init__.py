"""Accepted runs: what is stored of them, what happens to them, and the port of the stores that hold them."""
