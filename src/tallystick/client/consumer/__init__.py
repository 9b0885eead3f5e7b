"""The consumer: positions, fetches, decoding, and group membership.

`engine`, `fetcher` and `consumer_coordinator` are shells; their decisions are in `fetch_state`, `membership`
and `decode`, which are pure. The package does not depend on producers.
"""
