"""Who may ask what of the HTTP API, and how a browser stays logged in."""
