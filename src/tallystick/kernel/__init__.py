"""Names, error codes, limits and time: what every other part may import. Standard library only."""
