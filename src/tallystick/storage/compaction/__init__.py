"""Compaction of a log: the retention rules, one round over its files, and a crash-safe swap.

`rules` is pure; `cleaner` runs in a process of its own and knows files, not the `Log`.
"""
