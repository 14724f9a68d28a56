"""What ends a query of ours, apart from an option that cannot be used."""

from __future__ import annotations


class SourceError(Exception):
    """Planning or reading cannot go on; the text is one line that says where and why."""


class DataLossError(SourceError):
    """Messages that were to be read are gone, and `failOnDataLoss` is true."""
