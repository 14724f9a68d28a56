"""The management pages in the browser: their files, the addresses of pages, logging in.

The pages are in `static/`, and know the broker by its HTTP API alone. See decision 0060.
"""
