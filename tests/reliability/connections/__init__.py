"""A connection's life: opened, idle, abandoned, closed, by threads and callbacks."""
