"""The Spark formats against a running broker, on one shared session."""
