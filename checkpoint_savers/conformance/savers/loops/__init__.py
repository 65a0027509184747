"""The promises of savers for cancellation and concurrent use, on both event loops, as tests."""
