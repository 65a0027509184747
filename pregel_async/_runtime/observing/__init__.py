"""Notify observers of the events of runs."""
