"""Compaction of a log: what is kept, one round over its files, and the swap that a crash survives.

`rules` is pure; `cleaner` runs in a process of its own and knows files, not the `Log`.
"""
