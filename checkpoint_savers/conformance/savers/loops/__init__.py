"""What savers promise of cancellation and of concurrent use, on both event loops, as tests."""
