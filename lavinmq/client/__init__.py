"""A small AMQP client, for our own commands, Spark and tests; it knows nothing of a broker."""
