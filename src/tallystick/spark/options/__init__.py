"""Options of the Spark source and sink, and the definitions of the topics and tables of `foreach_batch`.

Values and checks only: nothing here contacts a cluster.
"""
