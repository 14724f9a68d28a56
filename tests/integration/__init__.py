"""Real clients against a started broker; one file per feature."""
