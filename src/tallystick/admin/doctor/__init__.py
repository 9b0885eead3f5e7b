"""The checks of `tallystick doctor`: facts about a cluster, pure checks, and a gatherer."""
