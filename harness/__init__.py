"""The project's own test harness: a simulated broker, a file system in memory, drivers for the pure machines.

It is not installed with the package; `tallystick.testing` has what users' tests need. Modules here may import
everything in the product; the product imports nothing from here, and this package nothing from `tests`.

memory_fs       a file system that loses what a real one may lose when power fails
recorded_calls  the system calls of a run, to be replayed on such a file system
groups          a driver for the consumer group machine
transactions    a driver for the transaction machine
sim             whole runs of the broker with faults, each from one seed
"""
