"""Spark's runtime on this machine: its Java, the user's cache, and garbage collection in reused workers.

It has nothing to do with Kafka, and imports no other folder of `spark`.
"""
