"""A TOML file or a Python object becomes a running Spark query. docs/pipeline.md has the keys of the file."""
