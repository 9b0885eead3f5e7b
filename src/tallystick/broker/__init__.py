"""The broker: an app (`serve`, `embedded`, `__main__`) around `broker`, which handlers are given.

Folders, from below: config, metadata, server, partitions, coordinator, txn and group, metrics, handlers.
Nothing here imports a client.
"""
