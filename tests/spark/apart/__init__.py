"""Tests of the Spark part that use no session, or start programs with sessions of their own."""
