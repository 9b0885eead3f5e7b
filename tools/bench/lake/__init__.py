"""Loads on tables of a lake."""
