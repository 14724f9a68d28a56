"""Names in a backup, for who makes one and who reads it. Source: docs/backup.md."""

from typing import Final

DATA: Final = "data"
"""The directory in it that has the files of the data directory."""
LAST: Final = "backup.json"
"""What comes last: without it a backup is not whole."""
BOOK: Final = "files.txt"
"""In a folder: a line for each file with hash, bytes, identity ("-": none) and path."""
IDENTITY: Final = "LAVINMQ.identity"
"""Of a file that had not been changed for a while: another identity, other content."""
KNOWN: Final = "LAVINMQ.known"
"""Marks a file that comes without its content, because the client has it."""
