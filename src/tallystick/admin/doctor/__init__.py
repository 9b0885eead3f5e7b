"""What `tallystick doctor` asks a cluster, and what it concludes: facts, pure checks, and a gatherer."""
