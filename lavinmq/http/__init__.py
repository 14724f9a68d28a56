"""The management interface: an HTTP API over what the broker holds, on TCP and unix sockets."""
