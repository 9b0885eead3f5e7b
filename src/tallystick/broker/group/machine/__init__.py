"""The group state machine: members, generations, offsets, and what a command changes. Pure.

`decide` turns a command into a Step, `apply` an event into the next group. No log, no clock.
"""
