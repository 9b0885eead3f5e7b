"""Operators' view of a cluster: what is in it, what is open, what hangs, and how to end it."""
