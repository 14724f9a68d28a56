"""Tests of the broker; a package so that every test file can import `tests.support`."""
