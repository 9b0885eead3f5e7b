"""Loads on tables of a lake outside of Spark."""
