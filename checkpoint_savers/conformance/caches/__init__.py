"""What caches promise, as tests."""
