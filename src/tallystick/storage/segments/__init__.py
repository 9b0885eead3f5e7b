"""One segment of a log: its files, their names and indexes, and the scan for its valid bytes.

What spans segments (appending, loading, retention, compaction) is one level up.
"""
