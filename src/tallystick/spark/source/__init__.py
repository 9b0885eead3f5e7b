"""The Spark source: `format("tallystick")` as a batch or a stream, planned on the driver and read in tasks.

Nothing here writes. For a query that continues after a sink, `start_offsets` reads the sink's decisions.
"""
