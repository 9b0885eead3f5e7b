"""What the broker knows besides the records: topics, configs, producer ids, feature levels. In SQLite.

Nothing here touches a log; calls that block run on `worker`.
"""
