"""Who may log in and what a user may do. Called at log-in and when permissions are checked."""
