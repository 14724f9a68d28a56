"""Several machines as one broker ([clustering.md](../../docs/clustering.md))."""
