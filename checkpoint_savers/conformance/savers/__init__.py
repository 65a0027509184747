"""What savers promise, as tests: one module per subject."""
