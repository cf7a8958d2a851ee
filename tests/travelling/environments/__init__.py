"""Environments with a habit each, by name."""
