"""What Spark runs on here: its Java, the user's cache, garbage in workers that are used again.

Knows nothing of Kafka, and imports no other folder of `spark`.
"""
