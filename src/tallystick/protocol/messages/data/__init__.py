"""Messages of records and their offsets: Produce, Fetch, ListOffsets and what trims or finds records."""
