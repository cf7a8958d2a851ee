"""Processes that fork, get signals, are stopped or killed."""
