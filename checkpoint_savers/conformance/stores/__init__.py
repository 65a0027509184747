"""What stores promise, as tests."""
