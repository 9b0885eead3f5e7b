"""Transaction state machine: entries, commands, decisions and events. Pure.

`decide` turns a command into a Step, `apply` an event into the next entry; InitProducerId, AddPartitionsToTxn
and EndTxn have a module each. Depends on the kernel alone: no log, no protocol, no clock.
"""
