"""Measurements of tallystick beside Apache Kafka; `python -m tools.bench` rewrites docs/benchmarks.md."""
