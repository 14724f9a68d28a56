"""Tests of what is shipped: the executable and what it is made from."""
