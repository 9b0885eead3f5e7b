"""Names, error codes, limits and time, which every other package may import. Standard library only."""
