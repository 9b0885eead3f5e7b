"""Transaction coordinator: a pure state machine and the shell that runs it."""
