"""The transaction state machine: entries, commands, decisions and events. Pure.

`decide` turns a command into a Step, `apply` an event into the next entry; a row each for InitProducerId,
AddPartitionsToTxn and EndTxn. Knows the kernel alone: no log, no protocol, no clock.
"""
