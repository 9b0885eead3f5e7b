"""Producer state, batch validation and aborted transactions. Pure: decides what may be appended."""
