"""Loads for the bench, each run as a process of its own that prints its figures as a line of JSON."""
