"""Group state machine: members, generations, offsets, and the effects of commands. Pure.

`decide` turns a command into a Step, `apply` an event into the next group. No log, no clock.
"""
