"""Reads what one page asks for: the history of one transactional id, the records of one partition.

    lookups          answers what pages ask for, from a cluster
    recent           answers that are kept for a moment
    history          pure: a history as a page has it, and histories kept from the transaction log
    history_reader   asks the broker, or follows the transaction log where brokers keep no histories
    record_query     pure: which records of which partition
    record_page      pure: fetched bytes as records, with what became of each
    record_browser   fetches them, without a group, in bounded requests

Everything else on a page is of the collector, which reads once for all pages. What is read here is read for
one id or one partition, for a moment for all who ask, and a bounded number of times at once.
"""
