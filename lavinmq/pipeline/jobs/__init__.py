"""The jobs of lavinmq-pipeline: every module here has a `JOB` (see ``job.py``)."""
