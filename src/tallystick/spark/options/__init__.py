"""What a query may be told, and what it is: options of source and sink, topics and tables written to.

Values and checks only: nothing here asks a cluster.
"""
