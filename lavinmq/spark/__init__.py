"""Spark reads streams, publishes to exchanges and scans data directories: formats for PySpark.

Nothing is imported before somebody asks for it, so that `import lavinmq` and the broker never
meet pyspark.
"""
