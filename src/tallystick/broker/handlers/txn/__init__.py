"""Handlers of transactions: the transactional producer's requests, and KIP-664's for operators."""
