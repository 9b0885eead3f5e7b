"""Reading: `format("tallystick")` as a batch or a stream, planned on the driver, read in tasks.

Nothing here writes. Where a query continues after a sink, `start_offsets` asks the sink's decisions.
"""
