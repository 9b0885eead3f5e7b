"""Produce requests: which batches are sent when, and the meaning of a response for each of them."""
