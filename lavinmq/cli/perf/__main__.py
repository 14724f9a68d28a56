"""`lavinmqperf [amqp|mqtt] <scenario> [options]`: finds the scenario and starts it.

Owns the usage of the program as a whole and turns errors into a message and status 1. A scenario
reads its options itself; the modules of the others are not even imported.
"""

import sys
from collections.abc import Sequence

from lavinmq import __version__
from lavinmq.cli.perf.options import Information, UsageError, build_info

SCENARIOS = {
    "amqp": (
        "throughput",
        "queue-count",
        "connection-count",
        "bind-churn",
        "queue-churn",
        "connection-churn",
        "channel-churn",
        "consumer-churn",
    ),
    "mqtt": ("throughput", "connection-count"),
}


def usage() -> str:
    """Return the help of the program as a whole."""
    lines = ["Usage: lavinmqperf [amqp|mqtt] <scenario> [options]", ""]
    for protocol, names in SCENARIOS.items():
        lines += [f"{protocol} scenarios:", *(f"  {name}" for name in names), ""]
    lines.append(
        "The protocol defaults to amqp. `lavinmqperf <scenario> --help` lists the options."
    )
    lines.append("  -h, --help      show this help and exit")
    lines.append("  -v, --version   show the version and exit")
    lines.append("  --build-info    show build information and exit")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lavinmqperf`; returns the exit status."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except Information as text:
        print(text)
        return 0
    except (UsageError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        print("See lavinmqperf --help", file=sys.stderr)
        return 1


def _run(args: list[str]) -> int:
    protocol = args.pop(0) if args and args[0] in SCENARIOS else "amqp"
    if not args:
        print(usage(), file=sys.stderr)
        return 1
    information = {
        "-h": usage,
        "--help": usage,
        "-v": lambda: __version__,
        "--version": lambda: __version__,
        "--build-info": build_info,
    }
    scenario = args.pop(0)
    if scenario in information:
        raise Information(information[scenario]())
    if scenario not in SCENARIOS[protocol]:
        raise UsageError(f"unknown scenario: {protocol} {scenario}")
    return _start(protocol, scenario, args)


def _start(protocol: str, scenario: str, args: list[str]) -> int:
    """Run a scenario. Raises: UsageError, Information, ValueError."""
    from lavinmq.client.errors import Error

    try:
        match scenario:
            case "throughput" if protocol == "mqtt":
                from lavinmq.cli.perf import mqtt_throughput

                return mqtt_throughput.run(args)
            case "connection-count" if protocol == "mqtt":
                from lavinmq.cli.perf import mqtt_connection_count

                return mqtt_connection_count.run(args)
            case "throughput":
                from lavinmq.cli.perf import throughput

                return throughput.run(args)
            case "queue-count":
                from lavinmq.cli.perf import queue_count

                return queue_count.run(args)
            case "connection-count":
                from lavinmq.cli.perf import connection_count

                return connection_count.run(args)
            case _:
                from lavinmq.cli.perf import churn

                return churn.run(scenario, args)
    except (Error, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
