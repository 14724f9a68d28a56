"""Sockets from the listener until the protocol begins: PROXY header, TLS, who is at both ends."""
