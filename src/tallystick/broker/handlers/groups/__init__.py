"""Handlers of consumer groups: membership and offsets."""
