"""The disk: every system call, the errors of the disk, and the reserve for a full one."""
