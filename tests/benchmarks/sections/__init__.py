"""What the benchmark measures: a module for each of its sections, or for a few."""
