"""`tallystick demo`: every flight that left New York in 2013, through a pipeline whose parts are killed."""
