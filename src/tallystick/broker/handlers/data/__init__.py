"""Handlers of records and their offsets: Produce, Fetch, and what trims or finds records."""
