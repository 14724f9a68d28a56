"""Hostile input: the broker answers with a proper error or closes, and lives."""
