"""The sink in Spark's tasks: rows become prepared transactions, staged rows, data files, and a vote."""
