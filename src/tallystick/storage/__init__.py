"""One partition's log on one disk, and the data directory that holds many: files, indexes, recovery.

`fs` makes every system call. Nothing here knows topic settings by name, coordinators or requests.
"""
