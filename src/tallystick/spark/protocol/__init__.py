"""The protocol between Spark and Kafka: values, their bytes, and what follows from what is known.

No I/O and no PySpark: the world is behind `ports`. Nothing here imports another folder of `spark`.
"""
