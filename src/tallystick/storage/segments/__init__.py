"""One segment of a log: its files, their names and indexes, and the scan for its valid bytes.

Whatever spans segments (appending, loading, retention, compaction) is in `log` and `compaction`.
"""
