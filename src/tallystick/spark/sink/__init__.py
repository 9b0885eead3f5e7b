"""Writing: Spark's hooks, a task's attempt, the driver's context, and recovery.

Rules are in `spark.protocol`, storage of decisions in `spark.decisions`. Nothing here reads for a source.
"""
