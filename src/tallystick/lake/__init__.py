"""Tables of a lake (Delta) whose commit is a decision: rules, names, data files, and adapters.

`entries` and `orphans` decide and are pure; `delta` is the only module that knows delta-rs. Spark's sink and
`tallystick lake` use them.
"""
