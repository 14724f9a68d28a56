"""Numbers of the broker and of its process, and their rates."""
