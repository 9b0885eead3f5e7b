"""Metrics as values, the broker's own, and the endpoint that serves them.

Metrics are read from the broker's parts; no part imports this.
"""
