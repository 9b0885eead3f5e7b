"""The Spark sink: Spark's writer hooks, a task's attempt, the driver's context, and recovery.

The rules are in `spark.protocol`, the storage of decisions in `spark.decisions`. Nothing here belongs to the
source.
"""
