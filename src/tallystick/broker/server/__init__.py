"""Sockets, frames and their memory; request contexts and authorization.

The meaning of requests is in `broker.handlers`: nothing here decodes a body.
"""
