"""The two-phase commit protocol between Spark and Kafka: messages, their encoding, and the decision rules.

No I/O and no PySpark: all effects go through `ports`. Nothing here imports another folder of `spark`.
"""
