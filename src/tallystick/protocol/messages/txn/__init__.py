"""Messages of transactions: a producer's, an operator's, and the records of `__transaction_state`."""
