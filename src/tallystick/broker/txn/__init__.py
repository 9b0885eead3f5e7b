"""The transaction coordinator: a pure machine and its shell."""
