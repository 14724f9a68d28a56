"""Kill the broker, restart it, and check what must have survived."""
