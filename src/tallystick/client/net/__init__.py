"""Network layer of the client: connections, requests in flight, metadata, coordinators.

Every request to a broker goes through `cluster`. `protocol_state` and `metadata` are pure. The package does
not depend on records, transactions or groups.
"""
