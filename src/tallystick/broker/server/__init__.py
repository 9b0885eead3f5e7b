"""Sockets, frames and memory for them; who asks, and what they may do.

What a request means is in `broker.handlers`: nothing here decodes a body.
"""
