"""The broker: an app (`serve`, `embedded`, `__main__`) around `broker`, the object that handlers use.

Folders, bottom up: config, metadata, server, partitions, coordinator, txn and group, metrics, handlers. This
package imports no client.
"""
