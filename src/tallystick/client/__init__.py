"""The engine of every client: connections, metadata, retries, records in and out. Knows no broker of ours."""
