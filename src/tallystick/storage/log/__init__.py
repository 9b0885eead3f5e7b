"""One partition's log over its segments: append, read, sync, open and repair, delete.

`recovery` and `retention` are pure; `loader` and the callers of `log` act on their decisions.
"""
