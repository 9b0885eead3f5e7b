"""Stores of the dual-write library, one module for each database, imported on first use."""
