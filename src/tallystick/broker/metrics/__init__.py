"""Metric values, the broker's own metrics, and the endpoint that serves them.

Metrics are read from the broker's components; no component imports this package.
"""
