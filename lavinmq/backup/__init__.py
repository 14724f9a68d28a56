"""Backups: the files of a running broker as they were at one moment, as one archive.

`taking.py` has the snapshot made, `archive.py` makes an archive of it, of what a client lacks.
Source: docs/backup.md.
"""
