"""lavinmqperf: measurements of throughput, churn, queues and connections."""
