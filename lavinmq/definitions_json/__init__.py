"""Definitions as JSON: users, virtual hosts, queues and all else that is declared, in one document.

`document` reads one and checks whatever can be checked without a broker, `plan` compares it with a
broker and applies what is new, `export` writes one, `boot` imports a file at the start. The format
is LavinMQ's and, as far as both know the same things, RabbitMQ's. All work is done in steps, so
that a broker serves its clients meanwhile. Source: docs/definitions.md.
"""
