"""Small files of the data directory: read, written whole, synced."""
