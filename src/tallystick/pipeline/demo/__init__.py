"""`tallystick demo`: all flights from New York in 2013, through a pipeline whose processes are killed."""
