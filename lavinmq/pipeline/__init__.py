"""`lavinmq-pipeline`: jobs on Spark that archive, replay and examine messages.

One module for each job in ``jobs/``; this package holds what they have in common. Importing it, and
printing help, needs neither pyspark nor Java: those are imported when a job makes its session.
"""
