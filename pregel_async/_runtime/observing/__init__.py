"""Notify observers of runs."""
