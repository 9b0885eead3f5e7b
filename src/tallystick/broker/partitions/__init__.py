"""Partitions and topics as the broker has them: logs in a data directory, cleaned, and read within limits.

Files and formats are in `tallystick.storage`. Nothing here knows a coordinator or an API.
"""
