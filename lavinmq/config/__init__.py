"""What the operator sets: flags, environment, ini file, checked and merged to one value."""
