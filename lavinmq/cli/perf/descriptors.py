"""The limit of open files, one per connection, for scenarios of lavinmqperf with many of them."""

import resource

# Standard streams, libraries being imported, epoll, the first connection.
OWN_DESCRIPTORS = 64


def allow_connections(count: int) -> None:
    """Raise the limit of this process to so many connections. Raises: OSError if that fails."""
    needed = count + OWN_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY:
        hard = max(hard, needed)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OverflowError, ValueError, OSError) as error:
        raise OSError(f"{count} connections need {needed} file descriptors: {error}") from error
