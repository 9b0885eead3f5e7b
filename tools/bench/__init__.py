"""Measurements beside Apache Kafka in one run; `python -m tools.bench` rewrites docs/benchmarks.md."""
