"""Freed memory stays with the process where the C library can be told so."""

import platform
import subprocess
import sys

import pytest

CODE = """
import resource
from tallystick.broker.serve import keep_freed_memory
print(int(keep_freed_memory()))
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytes(bytearray(8 << 20))
before = faults()
for _ in range(20):
    answer = [bytearray(1 << 20) for _ in range(6)]
print((faults() - before) // 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.slow
def test_a_large_answer_does_not_fault_its_pages_in_anew() -> None:
    """Six MiB are 1,536 pages; touching them for the first time each time would fault as often."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    told, faults_each = done.stdout.split()
    assert told == "1"
    assert int(faults_each) < 400
