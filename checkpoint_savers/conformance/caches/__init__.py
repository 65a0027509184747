"""The promises of caches, as tests."""
