"""Records between `send` and a Produce request: gathered into batches by partition."""
