"""One file a database; each is loaded when its store is first named."""
