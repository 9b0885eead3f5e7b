"""Spark's runtime on this machine: its Java, its version, and its Arrow types.

It has nothing to do with Kafka, and imports no other folder of `spark`.
"""
