"""What plays an environment in each way, and notes what it is told."""
