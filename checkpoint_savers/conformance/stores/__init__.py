"""The promises of stores, as tests."""
