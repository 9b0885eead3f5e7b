"""Partition logs on one disk: segments, indexes, recovery, compaction, and the data directory.

From the top: `log_dir` owns a data directory; `compaction` cleans a log; `log` appends, reads, opens and
deletes; `segments` are the files of a log; `state` decides about producers and batches; `checkpoints` are the
small files next to the segments; `disk` makes every system call. Nothing here knows topic settings by name,
coordinators or requests.
"""
