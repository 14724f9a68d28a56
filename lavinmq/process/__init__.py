"""This process: its log, what systemd gives and hears, long work in portions."""
