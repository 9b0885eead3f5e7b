"""Sockets and what is known of a cluster: connections, requests in flight, metadata, coordinators.

Everything that talks to a broker goes through `cluster`. `connection` and `metadata` are pure. Nothing here
knows records, transactions or groups.
"""
