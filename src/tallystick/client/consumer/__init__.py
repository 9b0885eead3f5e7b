"""Records in: positions, fetches, decoding, and membership of a group.

`engine`, `fetcher` and `group_runner` are shells; what they decide is in `fetch_state`, `membership` and
`decode`, which are pure. Knows nothing of producers.
"""
