"""Builds the one compiled module of lavinmq-client with the flags of the broker's modules."""

import broker_setup  # type: ignore[import-not-found]  # setup.py of the repository, laid beside
from setuptools import setup

broker_setup.MODULES = {"lavinmq.client._engine": "cext/client.pyx"}
if __name__ == "__main__":
    setup(ext_modules=broker_setup.extensions(False, ""))
