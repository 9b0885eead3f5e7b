"""The sink in the driver: Spark's hooks, the begin of a batch, its decision, and recovery."""
