"""Open transactions for an operator: list, assess, abort, complete and follow them (KIP-664, KIP-939).

transactions, transaction_requests    the calls
snapshots, hanging                    one picture of a cluster, and the pure verdicts on it
completion                            a prepared transaction decided by hand
transaction_log, transaction_log_fold `__transaction_state` of any cluster as transitions
"""
