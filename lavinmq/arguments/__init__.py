"""What a declaration may say: names and arguments, their types and bounds."""
