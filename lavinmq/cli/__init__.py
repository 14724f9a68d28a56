"""Command-line programs beside the broker: each module has a `main(argv) -> exit status`."""
