"""The promises of savers, as tests: one module per subject."""
