"""Management pages, looked at with a browser."""
