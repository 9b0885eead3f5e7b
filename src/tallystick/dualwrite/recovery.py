"""What recovery finds of a transactional id in both halves, and what follows from it. Pure."""
