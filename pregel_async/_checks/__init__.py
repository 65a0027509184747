"""Checks of what users pass in, before anything runs or is stored."""
