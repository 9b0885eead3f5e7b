"""Reads what one page asks for: the history of one transactional id, the records of one partition.

    lookups          reads from a cluster for single pages
    recent           answers that are kept for a moment
    history          pure: histories of pages, and those kept from the transaction log
    history_reader   asks the broker, or follows the transaction log where brokers keep no histories
    record_page      pure: a query of records, and fetched bytes as records with the verdict of each
    record_browser   fetches them, without a group, in bounded requests

Everything else on a page comes from the collector, which reads once for all pages. The readings here are for
one id or one partition, shared for a moment, and bounded in number at any time.
"""
