"""What ends a job, and with which exit status: 1 failed, 2 wrong usage, 3 data loss refused."""

DONE, FAILED, USAGE, DATA_LOSS = 0, 1, 2, 3


class PipelineError(Exception):
    """A job failed; the text is one line for people and holds no secret."""

    status = FAILED


class UsageError(PipelineError):
    """The command line makes no sense; the text names the option."""

    status = USAGE


class DataLossError(PipelineError):
    """Messages that should have been read are gone, and the job was not told to go on."""

    status = DATA_LOSS
