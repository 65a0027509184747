"""The conformance suite for run stores."""
