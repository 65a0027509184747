"""Answers in a given form: `schemas` describes the form, and `strategies` gets the answer from a model."""
