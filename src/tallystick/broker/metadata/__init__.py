"""Metadata of the broker in SQLite: topics, configs, producer ids, feature levels.

This package touches no log; blocking calls run on `worker`.
"""
