"""The console's model: a snapshot of cluster and stores, and the assessment of each transaction. Pure.

snapshot    values read from the cluster, the stores and the decision logs at one time
transactions  both sides of each transaction, matched by transactional id
assessment  a transaction's health, the reason, and the command that resolves it
health      the word for a whole cluster
events      differences between two snapshots
state       the newest snapshot, with everything derived from it
commands    command lines shown to an operator
escaped     text of other systems, escaped for a screen
"""
