"""The options of `lavinmqperf amqp *-churn`: their table, defaults and checks."""

from collections.abc import Sequence
from dataclasses import dataclass

from lavinmq.cli.perf.options import Parser, check, rate

CLIENTS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnOptions:
    """What all churn scenarios can be told; `time` is in seconds and for each operation."""

    uri: str = "amqp://guest:guest@localhost"
    clients: int = 1
    time: float = 5.0
    json: bool = False


def churn_parser(scenario: str) -> Parser:
    """Return the table of options of a churn scenario."""
    parser = Parser(f"amqp {scenario}", ChurnOptions())
    value, flag = parser.value, parser.flag
    value("-x", "--clients", text="clients at once, each with a connection, default 1")
    text = "measure each operation for this time after a fifth of it to warm up, default 5"
    value("-z", "--time", convert=rate, metavar="SECONDS", text=text)
    flag("-j", "--json", text="print the result as one line of JSON")
    return parser


def parse_churn(scenario: str, argv: Sequence[str]) -> ChurnOptions:
    """Read and check the options. Raises: UsageError, Information."""
    options = ChurnOptions(**churn_parser(scenario).read(argv))
    check(
        {
            f"--clients must be in 1..{CLIENTS_MAX}": not 1 <= options.clients <= CLIENTS_MAX,
            "--time must be more than 0": not options.time,
        }
    )
    return options
