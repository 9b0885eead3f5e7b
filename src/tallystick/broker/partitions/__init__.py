"""Topics and partitions of the broker: logs in a data directory, their cleaning, and reads within limits.

Files and formats are in `tallystick.storage`. This package knows no coordinator and no API.
"""
