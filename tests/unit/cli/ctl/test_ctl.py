"""lavinmqctl: what each command asks the API for, what it prints, its errors and exit statuses."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq import __version__
from lavinmq.auth import passwords
from lavinmq.cli.ctl import __main__ as ctl
from lavinmq.cli.ctl import api as ctl_api
from lavinmq.cli.ctl.arguments import check, parse
from lavinmq.cli.ctl.errors import UsageError
from lavinmq.cli.ctl.help import command_help
from lavinmq.cli.ctl.table import COMMANDS, GLOBAL_OPTIONS, Command
from tests.support.fake_api import FakeApi, serving

ALL_COMMANDS = [command for group in COMMANDS.values() for command in group]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeApi]:
    with serving(tmp_path_factory.mktemp("api")) as api:
        yield api


@pytest.fixture
def api(server: FakeApi, monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The stand-in, which has forgotten everything, as what the environment leads to."""
    server.requests.clear()
    server._answers.clear()
    monkeypatch.delenv("LAVINMQCTL_HOST", raising=False)
    monkeypatch.setenv("LAVINMQCTL_CONTROL_UNIX_PATH", server.path)
    return server


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs lavinmqctl; gives its status, output and errors."""

    def call(*argv: str) -> tuple[int, str, str]:
        status = ctl.main(argv)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def paged(items: list[Any], page: int = 1, page_count: int = 1) -> dict[str, Any]:
    return {"items": items, "page": page, "page_count": page_count, "item_count": len(items)}


# --- changes: command -> requests

USER = "/api/users/al%2Fice%20%C3%A9"
NAME = "al/ice é"


@pytest.mark.parametrize(
    ("argv", "method", "path", "body"),
    [
        (["add_user", NAME, "pw"], "PUT", USER, {"password": "pw"}),
        (["delete_user", NAME], "DELETE", USER, None),
        (["set_permissions", NAME, "c", "w", "r"], "PUT",
         "/api/permissions/%2F/al%2Fice%20%C3%A9", {"configure": "c", "write": "w", "read": "r"}),
        (["-p", "v/1", "clear_permissions", "bo"], "DELETE", "/api/permissions/v%2F1/bo", None),
        (["add_vhost", "a/b"], "PUT", "/api/vhosts/a%2Fb", None),
        (["delete_vhost", "a/b"], "DELETE", "/api/vhosts/a%2Fb", None),
        (["set_vhost_limits", '{"max-queues": -1}', "-pv"], "PUT",
         "/api/vhost-limits/v/max-queues", {"value": -1}),
        (["create_queue", "q/1"], "PUT", "/api/queues/%2F/q%2F1",
         {"auto_delete": False, "durable": False, "arguments": {}}),
        (["create_queue", "q", "--durable", "--auto-delete", "--expires", "1", "--max-length=2",
          "--message-ttl", "3", "--delivery-limit=4", "--reject-on-overflow",
          "--dead-letter-exchange", "dlx", "--dead-letter-routing-key=k"], "PUT",
         "/api/queues/%2F/q",
         {"auto_delete": True, "durable": True,
          "arguments": {"x-expires": 1, "x-max-length": 2, "x-message-ttl": 3,
                        "x-delivery-limit": 4, "x-overflow": "reject-publish",
                        "x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k"}}),
        (["create_queue", "--stream-queue", "s"], "PUT", "/api/queues/%2F/s",
         {"auto_delete": False, "durable": True, "arguments": {"x-queue-type": "stream"}}),
        (["delete_queue", "q", "-p", "v"], "DELETE", "/api/queues/v/q", None),
        (["purge_queue", "q"], "DELETE", "/api/queues/%2F/q/contents", None),
        (["pause_queue", "q"], "PUT", "/api/queues/%2F/q/pause", None),
        (["resume_queue", "q"], "PUT", "/api/queues/%2F/q/resume", None),
        (["restart_queue", "q"], "PUT", "/api/queues/%2F/q/restart", None),
        (["create_exchange", "topic", "x", "--durable", "--internal", "--auto-delete", "--delayed",
          "--alternate-exchange", "ae", "--persist-messages=5", "--persist-ms", "6"], "PUT",
         "/api/exchanges/%2F/x",
         {"type": "topic", "durable": True, "internal": True, "auto_delete": True, "delayed": True,
          "arguments": {"x-alternate-exchange": "ae", "x-persist-messages": 5,
                        "x-persist-ms": 6}}),
        (["delete_exchange", "x"], "DELETE", "/api/exchanges/%2F/x", None),
        (["set_policy", "p", "^q", '{"max-length": 1}'], "PUT", "/api/policies/%2F/p",
         {"pattern": "^q", "definition": {"max-length": 1}, "priority": 0, "apply-to": "all"}),
        (["set_policy", "--priority=-5", "--apply-to", "queues", "p", "", "{}"], "PUT",
         "/api/policies/%2F/p",
         {"pattern": "", "definition": {}, "priority": -5, "apply-to": "queues"}),
        (["clear_policy", "p"], "DELETE", "/api/policies/%2F/p", None),
        (["set_operator_policy", "--priority", "3", "p", ".*", '{"expires": 9}'], "PUT",
         "/api/operator-policies/%2F/p",
         {"pattern": ".*", "definition": {"expires": 9}, "priority": 3, "apply-to": "all"}),
        (["clear_operator_policy", "p"], "DELETE", "/api/operator-policies/%2F/p", None),
        (["set_parameter", "c", "n", "[1]"], "PUT", "/api/parameters/c/%2F/n", {"value": [1]}),
        (["clear_parameter", "c", "n"], "DELETE", "/api/parameters/c/%2F/n", None),
        (["add_shovel", "s", "--src-uri", "amqp://a", "--dest-uri=amqp://b", "--src-queue", "q",
          "--dest-queue", "d"], "PUT", "/api/parameters/shovel/%2F/s",
         {"value": {"src-uri": "amqp://a", "dest-uri": "amqp://b", "src-queue": "q",
                    "dest-queue": "d", "src-prefetch-count": 1000, "src-delete-after": "never",
                    "reconnect-delay": 5, "ack-mode": "on-confirm"}}),
        (["delete_shovel", "s"], "DELETE", "/api/parameters/shovel/%2F/s", None),
        (["pause_shovel", "s"], "PUT", "/api/shovels/%2F/s/pause?force=true", None),
        (["resume_shovel", "s"], "PUT", "/api/shovels/%2F/s/resume", None),
        (["add_federation", "f", "--uri", "amqp://up", "--expires", "7", "--exchange=x"], "PUT",
         "/api/parameters/federation-upstream/%2F/f",
         {"value": {"uri": "amqp://up", "exchange": "x", "expires": 7, "max-hops": 1,
                    "prefetch-count": 1000, "reconnect-delay": 1, "ack-mode": "on-confirm"}}),
        (["delete_federation", "f"], "DELETE", "/api/parameters/federation-upstream/%2F/f", None),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_change_is_one_request_with_encoded_names(
    api: FakeApi, run: Run, argv: list[str], method: str, path: str, body: object
) -> None:
    api.answer(method, path, 204)

    status, out, err = run(*argv)

    assert (status, out) == (0, "")
    assert err == ""
    assert api.calls == [(method, path)]
    (request,) = api.requests
    assert (request.json() if request.body else None) == body
    # The API takes an empty body for {}, and refuses a request that has none at all.
    assert request.headers["Content-Length"] == str(len(request.body))


@pytest.mark.parametrize(
    "option",
    ["--uri", "--host", "--hostname", "--port", "--scheme", "--user", "--vhost",
     "--control-unix-path"],
)  # fmt: skip
def test_an_empty_value_does_not_mean_the_default(run: Run, option: str) -> None:
    """A script's variable was empty: nobody meant the broker of this host."""
    assert run(f"{option}=", "list_queues") == (
        1, "", f"Error: The value of {option} is empty\nSee lavinmqctl --help\n",
    )  # fmt: skip
    assert run(option, "", "list_queues")[0] == 1


@pytest.mark.parametrize(
    ("key", "status", "text"),
    [(EOFError, 1, "\nError: Missing argument: password\n"), (KeyboardInterrupt, 130, "\n")],
)
def test_leaving_the_question_for_a_password_shows_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, key: type[BaseException], status: int, text: str
) -> None:
    def leave(_prompt: str) -> str:
        raise key

    monkeypatch.setattr("getpass.getpass", leave)
    monkeypatch.setattr("sys.stdin", Terminal())

    left, out, err = run("add_user", "bo")

    assert (left, out) == (status, "")
    assert err.startswith(text)


class Terminal(io.StringIO):
    """Standard input where somebody sits."""

    def isatty(self) -> bool:
        return True


def test_an_unknown_command_names_the_known_one_that_is_most_like_it(run: Run) -> None:
    assert "Invalid argument: list_queue, did you mean 'list_queues'?" in run("list_queue")[2]
    assert "Invalid argument: --vhots, did you mean '--vhost'?" in run("--vhots", "x")[2]
    assert "did you mean" not in run("xyzzy")[2]


def test_both_limits_of_a_vhost_are_set_and_cleared(api: FakeApi, run: Run) -> None:
    for name in ("max-connections", "max-queues"):
        api.answer("PUT", f"/api/vhost-limits/%2F/{name}", 204)
        api.answer("DELETE", f"/api/vhost-limits/%2F/{name}", 204)

    assert run("set_vhost_limits", '{"max-connections": 1, "max-queues": 2}')[0] == 0
    assert run("clear_vhost_limits")[0] == 0

    assert [request.json() for request in api.requests[:2]] == [{"value": 1}, {"value": 2}]
    assert [method for method, _ in api.calls] == ["PUT", "PUT", "DELETE", "DELETE"]


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (["change_password", "bo", "pw"], {"password": "pw"}),
        (["set_user_tags", "bo", "management", "policymaker"], {"tags": "management,policymaker"}),
        (["set_user_tags", "bo"], {"tags": ""}),
    ],
)
def test_a_change_of_a_user_who_is_there(
    api: FakeApi, run: Run, argv: list[str], body: object
) -> None:
    api.answer("GET", "/api/users/bo", content={"name": "bo"})
    api.answer("PUT", "/api/users/bo", 204)

    assert run(*argv)[0] == 0

    assert api.requests[-1].json() == body


def test_a_tag_that_means_nothing_is_refused_before_all_others_are_taken(run: Run) -> None:
    status, output, errors = run("set_user_tags", "guest", "administrator", "nonsense")

    assert (status, output) == (1, "")
    assert errors.startswith("Error: Unknown tag 'nonsense', one of administrator,")


@pytest.mark.parametrize(
    "argv", [["change_password", "bo", "pw"], ["set_user_tags", "bo", "monitoring"]]
)
def test_a_change_of_a_user_who_is_not_there_makes_none(
    api: FakeApi, run: Run, argv: list[str]
) -> None:
    status, output, errors = run(*argv)

    assert (status, output, errors) == (1, "", "Error: There is no user 'bo'\n")
    assert [method for method, _ in api.calls] == ["GET"]


def test_a_password_may_come_from_standard_input(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answer("PUT", "/api/users/bo", 201)
    monkeypatch.setattr("sys.stdin", io.StringIO("ge heim\nmore\n"))

    assert run("add_user", "bo")[0] == 0

    assert api.requests[0].json() == {"password": "ge heim"}


def test_no_password_at_all_is_an_error(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    assert run("add_user", "bo")[0] == 1
    assert api.calls == []


def test_hash_password_needs_no_broker_and_prints_a_sha256_hash(run: Run) -> None:
    status, output, _ = run("hash_password", "geheim")

    assert status == 0
    raw = b64decode(output)
    salt, digest = raw[:4], raw[4:]
    assert digest == hashlib.sha256(salt + b"geheim").digest()  # as RabbitMQ reads it
    assert passwords.verify(b"geheim", output.strip(), "rabbit_password_hashing_sha256")


@pytest.mark.parametrize("command", ["stop_app", "start_app"])
def test_starting_and_stopping_applications_does_nothing(
    api: FakeApi, run: Run, command: str
) -> None:
    assert run(command) == (0, "", "")
    assert api.calls == []


# --- lists


@pytest.mark.parametrize(
    ("argv", "path", "rows", "lines"),
    [
        (["list_users"], "/api/users", [{"name": "a", "tags": "management,monitoring"}],
         ["name\ttags", "a\tmanagement,monitoring"]),
        (["list_vhosts"], "/api/vhosts", [{"name": "/"}, {"name": "a b"}], ["name", "/", "a b"]),
        (["list_queues"], "/api/queues/%2F", [{"name": "q", "messages": 3}],
         ["name\tmessages", "q\t3"]),
        (["list_queues", "name", "durable", "arguments", "nope"], "/api/queues/%2F",
         [{"name": "q", "durable": True, "arguments": {"x": 1}}],
         ["name\tdurable\targuments\tnope", 'q\ttrue\t{"x": 1}\t']),
        (["-p", "v/1", "list_exchanges"], "/api/exchanges/v%2F1", [{"name": "", "type": "direct"}],
         ["name\ttype", "\tdirect"]),
        (["list_bindings"], "/api/bindings/%2F",
         [{"source": "x", "destination": "q", "destination_type": "queue", "routing_key": "k",
           "arguments": {}}],
         ["source\tdestination\tdestination_type\trouting_key\targuments", "x\tq\tqueue\tk\t{}"]),
        (["list_permissions"], "/api/vhosts/%2F/permissions",
         [{"user": "a", "vhost": "/", "configure": ".*", "write": "", "read": "^q"}],
         ["user\tconfigure\twrite\tread", "a\t.*\t\t^q"]),
        (["list_user_permissions", "a/b"], "/api/users/a%2Fb/permissions",
         [{"user": "a/b", "vhost": "/", "configure": ".*", "write": "w", "read": "r"}],
         ["vhost\tconfigure\twrite\tread", "/\t.*\tw\tr"]),
        (["list_topic_permissions"], "/api/vhosts/%2F/topic-permissions",
         [{"user": "a", "vhost": "/", "exchange": "x", "write": "", "read": "^k"}],
         ["user\texchange\twrite\tread", "a\tx\t\t^k"]),
        (["list_user_topic_permissions", "a/b"], "/api/users/a%2Fb/topic-permissions",
         [{"user": "a/b", "vhost": "/", "exchange": "x", "write": "w", "read": "r"}],
         ["vhost\texchange\twrite\tread", "/\tx\tw\tr"]),
        (["list_policies"], "/api/policies/%2F",
         [{"name": "p", "vhost": "/", "pattern": ".*", "apply-to": "all", "priority": 1,
           "definition": {"max-length": 1}}],
         ["vhost\tname\tpattern\tapply-to\tpriority\tdefinition",
          '/\tp\t.*\tall\t1\t{"max-length": 1}']),
        (["list_operator_policies"], "/api/operator-policies/%2F", [],
         ["vhost\tname\tpattern\tapply-to\tpriority\tdefinition"]),
        (["list_parameters"], "/api/parameters",
         [{"component": "c", "name": "n", "vhost": "/", "value": 1},
          {"component": "c", "name": "elsewhere", "vhost": "v", "value": 1}],
         ["component\tname\tvalue", "c\tn\t1"]),
        (["list_parameters", "c"], "/api/parameters/c/%2F",
         [{"component": "c", "name": "n", "vhost": "/", "value": [1]}],
         ["component\tname\tvalue", "c\tn\t[1]"]),
        (["list_vhost_limits"], "/api/vhost-limits/%2F",
         [{"vhost": "/", "value": {"max-queues": 5}}],
         ["vhost\tmax-connections\tmax-queues", "/\t\t5"]),
        (["list_connections"], "/api/connections",
         [{"user": "a", "peer_host": "h", "peer_port": 5, "state": "running"}],
         ["user\tpeer_host\tpeer_port\tstate", "a\th\t5\trunning"]),
        (["list_connections", "client_properties", "-p", "v"], "/api/vhosts/v/connections",
         [{"client_properties": {"product": 'a "b"', "capabilities": {"x": True}, "n": [1, None]}}],
         ["client_properties",
          '[{"product","a \\"b\\""},{"capabilities",[{"x",true}]},{"n",[1,undefined]}]']),
        (["list_channels"], "/api/channels",
         [{"name": "c[1]", "user": "a", "consumer_count": 0, "messages_unacknowledged": 2}],
         ["name\tuser\tconsumer_count\tmessages_unacknowledged", "c[1]\ta\t0\t2"]),
        (["list_consumers"], "/api/consumers",
         [{"queue": {"name": "q", "vhost": "/"}, "channel_details": {"name": "c[1]"},
           "consumer_tag": "t", "ack_required": False, "prefetch_count": 3}],
         ["queue.name\tchannel_details.name\tconsumer_tag\tack_required\tprefetch_count",
          "q\tc[1]\tt\tfalse\t3"]),
        (["list_shovels"], "/api/shovels",
         [{"name": "s", "vhost": "/", "state": "Running", "error": None},
          {"name": "t", "vhost": "/", "state": "Error", "error": "refused"}],
         ["name\tvhost\tstate\terror", "s\t/\tRunning\t", "t\t/\tError\trefused"]),
        (["list_federations"], "/api/parameters/federation-upstream/%2F",
         [{"name": "f", "component": "federation-upstream", "vhost": "/", "value": {}}],
         ["name\tcomponent", "f\tfederation-upstream"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value and
    isinstance(value[0], str) and "list_" in " ".join(value) else "",
)  # fmt: skip
def test_a_list_is_a_header_and_rows_with_tabs(
    api: FakeApi, run: Run, argv: list[str], path: str, rows: list[Any], lines: list[str]
) -> None:
    api.answer("GET", path, content=paged(rows))

    status, out, _ = run("-q", *argv)

    assert (status, out) == (0, "".join(f"{line}\n" for line in lines))
    assert api.requests[0].path.partition("?")[0] == path


def test_a_column_that_nothing_has_is_told(api: FakeApi, run: Run) -> None:
    """A slip in its name gave an empty column in silence."""
    rows = [{"name": "q", "policy": None}, {"name": "r", "message_stats": {"ack": 1}}]
    api.answer("GET", "/api/queues/%2F", content=paged(rows))
    argv = ("list_queues", "name", "policy", "messagess", "message_stats.ack", "message_stats.x")

    status, out, errors = run("-q", *argv)

    assert (status, out.splitlines()[1:]) == (0, ["q\t\t\t\t", "r\t\t\t1\t"])
    assert errors == (
        "Warning: no row has a column messagess\nWarning: no row has a column message_stats.x\n"
    )
    api.answer("GET", "/api/queues/empty", content=paged([]))
    assert run("-q", "-p", "empty", *argv)[2] == ""


def test_a_list_is_fetched_in_pages(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/queues/%2F", content=paged([{"name": "a", "messages": 1}], 1, 2))
    api.answer("GET", "/api/queues/%2F", content=paged([{"name": "b", "messages": 2}], 2, 2))

    _, output, _ = run("list_queues", "--quiet")

    assert output == "name\tmessages\na\t1\nb\t2\n"
    assert [path.partition("?")[2] for _, path in api.calls] == [
        "columns=name%2Cmessages&page=1&page_size=10000",
        "columns=name%2Cmessages&page=2&page_size=10000",
    ]


def test_a_list_that_comes_without_pages_is_taken_too(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/users", content=[{"name": "a", "tags": ""}])

    assert run("-s", "list_users")[1] == "name\ttags\na\t\n"


def test_text_has_a_line_for_people_unless_it_is_quiet(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/users", content=[])

    assert run("list_users")[1] == "Listing users ...\nname\ttags\n"
    assert run("list_users", "-q")[1] == run("list_users", "--silent")[1] == "name\ttags\n"


def test_json_is_one_line_with_the_columns(api: FakeApi, run: Run) -> None:
    rows = [{"name": "é", "messages": 1, "more": 2}, {"name": "b", "messages": None}]
    api.answer("GET", "/api/queues/%2F", content=paged(rows))

    _, output, _ = run("list_queues", "--format", "json")

    assert output == '[{"name": "é", "messages": 1}, {"name": "b", "messages": null}]\n'


def test_a_name_cannot_add_rows_or_steer_the_terminal(api: FakeApi, run: Run) -> None:
    api.answer(
        "GET", "/api/queues/%2F", content=paged([{"name": "a\n\tb\x1b[2J\ud800", "messages": 1}])
    )

    assert run("-q", "list_queues")[1] == "name\tmessages\na\\n\\tb\\x1b[2J\\ud800\t1\n"


# --- connections


def test_a_connection_is_closed_with_a_reason(api: FakeApi, run: Run) -> None:
    name = "127.0.0.1:5 -> 127.0.0.1:6"
    path = "/api/connections/127.0.0.1%3A5%20-%3E%20127.0.0.1%3A6"
    api.answer("DELETE", path, 204)

    assert run("close_connection", name) == (0, f"Closing connection {name} ...\n", "")
    assert run("-q", "close_connection", name, "be\ngone") == (0, "", "")

    assert api.calls == [("DELETE", path)] * 2
    reasons = [request.headers["X-Reason"] for request in api.requests]
    assert reasons == ["Closed via lavinmqctl", "be?gone"]


def test_all_connections_are_closed_and_those_already_gone_are_no_error(
    api: FakeApi, run: Run
) -> None:
    api.answer("GET", "/api/connections", content=paged([{"name": "a"}, {"name": "b"}]))
    api.answer("DELETE", "/api/connections/a", 204)

    assert run("-q", "close_all_connections", "bye")[:2] == (0, "closed_connections\na\n")
    assert run("-f", "json", "close_all_connections")[1] == '{"closed_connections": ["a"]}\n'
    assert api.requests[1].headers["X-Reason"] == "bye"


# --- the broker

OVERVIEW = {
    "lavinmq_version": "2.9.1", "node": "n", "uptime": 7,
    "object_totals": {"connections": 1, "channels": 2, "consumers": 3, "exchanges": 4,
                      "queues": 5, "bindings": 6},
    "queue_totals": {"messages": 9, "messages_ready": 8, "messages_unacknowledged": 1},
}  # fmt: skip


def test_status_shows_the_overview(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/overview", content=OVERVIEW)

    assert run("status")[1].splitlines() == [
        "Version: 2.9.1", "Node: n", "Uptime: 7", "Connections: 1", "Channels: 2", "Consumers: 3",
        "Exchanges: 4", "Queues: 5", "Bindings: 6", "Messages: 9", "Messages_ready: 8",
        "Messages_unacked: 1",
    ]  # fmt: skip
    assert json.loads(run("status", "-fjson")[1])["Messages_unacked"] == 1


def test_cluster_status_shows_the_followers(api: FakeApi, run: Run) -> None:
    node = {"name": "n", "applications": [{"name": "lavinmq", "version": "1"}],
            "followers": [{"id": "x"}]}  # fmt: skip
    api.answer("GET", "/api/nodes", content=[node])

    assert run("cluster_status")[1] == 'this_node: n\nversion: 1\nfollowers: [{"id": "x"}]\n'


NODE = {"name": "n", "applications": [{"name": "lavinmq", "version": "1"}], "followers": []}
PICTURE = {
    "id": "a", "role": "leader", "epoch": 3, "leader": {"id": "a", "uri": "tcp://a:1"},
    "in_sync": ["a", "b"], "members": ["a", "b", "c"], "min_insync_replicas": 2,
    "acknowledges": True, "reasons": {},
    "nodes": [{"id": each, "uri": f"tcp://{each}:1", "version": "1", "live": each != "d"}
              for each in "abcde"],
    "followers": [
        {"id": "b", "in_sync": True, "joining": False, "lag_in_bytes": 5, "lag_seconds": 0.5},
        {"id": "c", "in_sync": False, "joining": True, "lag_in_bytes": None, "lag_seconds": None},
    ],
    "elections": [
        {"epoch": 2, "node": "b", "uri": "tcp://b:1", "at": 0.5, "ended": "it was stopped"},
        {"epoch": 3, "node": "a", "uri": "tcp://a:1", "at": 1e99, "ended": ""},
    ],
}  # fmt: skip


def test_cluster_status_shows_each_node_of_a_cluster(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/nodes", content=[NODE])
    api.answer("GET", "/api/cluster", content=PICTURE)

    status, out, _ = run("cluster_status")

    assert status == 0
    assert out.splitlines() == [
        "this_node: n", "version: 1", "followers: []", "role: leader", "epoch: 3", "leader: a",
        'in_sync: ["a", "b"]', "min_insync_replicas: 2", "acknowledges: true", "nodes: 5",
        "  a\ttcp://a:1\t1\tleader", "  b\ttcp://b:1\t1\tin sync\t5 bytes\t0.5 s",
        "  c\ttcp://c:1\t1\tjoining", "  d\ttcp://d:1\t1\taway",
        "  e\ttcp://e:1\t1\tnot connected", "elections: 2",
        "  1970-01-01 00:00:00+00:00\tepoch 2\tb\tended: it was stopped", "  -\tepoch 3\ta",
    ]  # fmt: skip
    found = json.loads(run("cluster_status", "--format", "json")[1])
    assert (found["this_node"], found["leader"], found["in_sync"]) == ("n", "a", ["a", "b"])
    assert found["nodes"][1] == {
        "id": "b", "uri": "tcp://b:1", "version": "1", "state": "in sync", "lag_in_bytes": 5,
        "lag_seconds": 0.5,
    }  # fmt: skip
    assert found["elections"] == PICTURE["elections"]


def test_cluster_status_says_why_nothing_is_acknowledged(api: FakeApi, run: Run) -> None:
    behind = [{**PICTURE["followers"][0], "in_sync": False}]  # type: ignore[index]
    held = {"acknowledges": False, "reasons": {"acknowledges": "too few"}, "followers": behind}
    api.answer("GET", "/api/nodes", content=[NODE])
    api.answer("GET", "/api/cluster", content={**PICTURE, **held})

    out = run("cluster_status")[1]

    assert "acknowledges: false\nreason: too few\n" in out
    assert "\tbehind\t5 bytes" in out


def test_cluster_status_of_a_follower_is_shown_by_its_port_for_metrics(
    api: FakeApi, run: Run
) -> None:
    nodes = [{**each, "in_sync": each["id"] in "ab"} for each in PICTURE["nodes"]]  # type: ignore[index, attr-defined]
    api.answer("GET", "/api/nodes", 404, {"error": "not_found", "reason": "no"})
    api.answer("GET", "/api/cluster", content={
        **PICTURE, "id": "b", "role": "follower", "followers": [], "nodes": nodes,
    })  # fmt: skip

    out = run("cluster_status")[1].splitlines()

    assert out[:4] == ["this_node: b", "version: 1", "followers: []", "role: follower"]
    assert [line.split("\t")[3] for line in out if line.startswith("  ") and "tcp" in line] == [
        "leader", "in sync", "behind", "away", "behind",
    ]  # fmt: skip


def test_who_wants_to_stop_a_node_waits_until_others_can_do_without_it(
    api: FakeApi, run: Run
) -> None:
    api.answer("GET", "/api/cluster", content={
        **PICTURE, "safe_to_restart": False, "reasons": {"safe_to_restart": "1 of 2 nodes"},
    })  # fmt: skip
    status, _, said = run("await_online_quorum_plus_one", "--timeout", "0")
    assert (status, said) == (1, "Error: It may not be stopped: 1 of 2 nodes\n")

    api.answer("GET", "/api/cluster", content={**PICTURE, "safe_to_restart": True})
    assert run("await_online_quorum_plus_one") == (0, "", "")


def test_cluster_status_of_a_single_node_shows_no_cluster(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/nodes", content=[NODE])
    api.answer("GET", "/api/cluster", content={**PICTURE, "role": "none"})

    assert run("cluster_status")[1] == "this_node: n\nversion: 1\nfollowers: []\n"


def test_cluster_status_fails_when_the_cluster_may_not_be_seen(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/cluster", 403, {"error": "access_refused", "reason": "no"})

    assert run("cluster_status")[0] == 1


def test_gc_collect_shows_numbers_after_collecting(api: FakeApi, run: Run) -> None:
    api.answer("POST", "/api/nodes/gc_collect", 204)
    api.answer("GET", "/api/nodes/gc_stats", content={"heap_size": 5})

    assert run("gc_collect")[1] == "heap_size: 5\n"
    assert [method for method, _ in api.calls] == ["POST", "GET"]


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (["check_alarms"], "alarms"),
        (["check_local_alarms"], "local-alarms"),
        (["check_port_listener", "5672"], "port-listener/5672"),
        (["check_protocol_listener", "amqp/ssl"], "protocol-listener/amqp%2Fssl"),
        (["check_virtual_hosts"], "virtual-hosts"),
        (["check_running"], "ready-to-serve-clients"),
        (["check_certificate_expiration", "2", "weeks"], "certificate-expiration/2/weeks"),
    ],
)
def test_a_check_passes_or_fails(api: FakeApi, run: Run, argv: list[str], path: str) -> None:
    api.answer("GET", f"/api/health/checks/{path}", 200, {"status": "ok"})
    api.answer("GET", f"/api/health/checks/{path}", 503, {"status": "failed", "reason": "so"})

    assert run(*argv) == (0, "status: ok\n", "")
    assert run(*argv) == (1, "", "Error: The check has failed: so\n")


def test_wait_goes_on_until_the_broker_answers(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/overview", 503, b"This node is a follower")
    api.answer("GET", "/api/overview", 200, OVERVIEW)

    assert run("wait", "--timeout", "30") == (0, "", "")
    assert len(api.calls) == 2


def test_wait_gives_up(run: Run, tmp_path: Path) -> None:
    status, _, errors = run("wait", "--timeout=0", f"--control-unix-path={tmp_path}/none")

    assert status == 1
    assert "No broker after 0 s" in errors


def test_wait_ends_when_the_broker_refuses_the_user(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/overview", 401)

    assert run("wait", "--timeout", "30")[0] == 1
    assert len(api.calls) == 1


# --- definitions


def test_definitions_are_printed_as_the_broker_gives_them(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/definitions", content=b'{"users":[ ]}')
    api.answer("GET", "/api/definitions/v", content=b'{"queues":[]}')

    assert run("export_definitions")[1] == '{"users":[ ]}\n'
    assert run("export_definitions", "-p", "v")[1] == '{"queues":[]}\n'


def test_definitions_are_imported_from_a_file_as_they_are(
    api: FakeApi, run: Run, tmp_path: Path
) -> None:
    api.answer("POST", "/api/definitions", content=b"")
    api.answer("POST", "/api/definitions/v", content=b"")
    path = tmp_path / "definitions.json"
    path.write_text('{"vhosts": [ ]}')

    assert run("import_definitions", str(path)) == (0, "", "")
    assert run("import_definitions", str(path), "--vhost=v") == (0, "", "")

    assert [request.body for request in api.requests] == [b'{"vhosts": [ ]}'] * 2
    assert api.requests[0].headers["Content-Type"] == "application/json"


def test_definitions_are_imported_from_standard_input(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answer("POST", "/api/definitions", content=b"")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))

    assert run("import_definitions", "-")[0] == 0

    assert api.requests[0].body == b"{}"


def test_a_dry_run_is_asked_for_and_shown(api: FakeApi, run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").write_text("{}")
    report = {"unchanged": 3, "changes": [{"what": "queue q", "how": "new"}], "skipped": ["x"]}
    api.answer("POST", "/api/definitions?dry_run=true", content=report)

    text = "unchanged: 3\nchanges: 1\n  queue q\tnew\nskipped: 1\n  x\n"
    assert run("import_definitions", f"{tmp_path}/d", "--dry-run") == (0, text, "")
    _, output, _ = run("-f", "json", "import_definitions", f"{tmp_path}/d", "--dry-run")
    assert json.loads(output) == report


def test_what_was_left_out_of_an_import_is_shown(api: FakeApi, run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").write_text("{}")
    left_out = {"place": "queues[0] 'q'", "reason": "too bad"}
    report = {"imported": 1, "unchanged": 2, "skipped": [left_out], "notes": []}
    api.answer("POST", "/api/definitions?skip_errors=true", content=report)

    text = "imported: 1\nunchanged: 2\nskipped: 1\n  queues[0] 'q'\ttoo bad\nnotes: 0\n"
    assert run("import_definitions", f"{tmp_path}/d", "--skip-errors") == (0, text, "")


def test_every_bad_entry_of_an_import_has_a_line(api: FakeApi, run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").write_text("{}")
    errors = [{"place": "queues[0] 'q'", "reason": "too bad"}, {"place": "", "reason": "no\nline"}]
    refusal = {"error": "bad_request", "reason": "both", "errors": errors}
    api.answer("POST", "/api/definitions", 400, refusal)

    status, out, err = run("import_definitions", f"{tmp_path}/d")

    assert (status, out) == (1, "")
    assert err == (
        "Error: 400 - Bad Request: 2 entries cannot be\n  queues[0] 'q': too bad\n  no\\nline\n"
    )


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_document_is_an_error(
    api: FakeApi, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """An export that failed leaves one; nobody shall think that it was imported."""
    path = tmp_path / "empty"
    path.write_text(content)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))

    assert run("import_definitions", str(path)) == (
        1, "", f"Error: {path} is empty: there is nothing to import\n",
    )  # fmt: skip
    assert run("import_definitions", "-") == (
        1, "", "Error: Standard input is empty: there is nothing to import\n",
    )  # fmt: skip
    assert api.requests == []


def test_a_file_that_is_not_there_is_an_error(run: Run) -> None:
    assert run("import_definitions", "/nowhere") == (
        1, "", "Error: Cannot read /nowhere: No such file or directory\n",
    )  # fmt: skip


def test_bytes_that_are_no_utf8_are_sent_as_they_are(api: FakeApi, run: Run) -> None:
    api.answer("DELETE", "/api/queues/%2F/q%FF", 204)

    assert run("delete_queue", "q\udcff", "--user", "a\udcfe", "--password", "x")[0] == 0

    assert b64decode(api.requests[0].headers["Authorization"][6:]) == b"a\xfe:x"


# --- where the API is


@pytest.mark.parametrize(
    "options",
    [
        ["--hostname", "127.0.0.1", "--port", "{port}"],
        ["--hostname=127.0.0.1", "--port={port}", "--scheme=http"],
        ["-U", "http://127.0.0.1:{port}"],
        ["--uri=http://127.0.0.1:{port}/"],
        ["-H", "127.0.0.1:{port}"],
        ["--host", "http://127.0.0.1:{port}"],
        ["--control-unix-path", "{path}"],
    ],
    ids=lambda options: options[0],
)
def test_the_place_is_chosen_by_options(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setenv("LAVINMQCTL_HOST", "http://127.0.0.1:1")
    monkeypatch.setenv("LAVINMQCTL_CONTROL_UNIX_PATH", "/nowhere")
    api.answer("GET", "/api/users", content=[])
    given = [option.format(port=api.port, path=api.path) for option in options]

    assert run(*given, "list_users") == (0, "Listing users ...\nname\ttags\n", "")


@pytest.mark.parametrize(
    ("there", "chosen"), [((), "b"), (("a",), "a"), (("b",), "b"), (("a", "b"), "a")]
)
def test_without_any_word_it_is_the_first_usual_socket_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: tuple[str, ...], chosen: str
) -> None:
    monkeypatch.setattr(ctl_api, "CONTROL_PATHS", (f"{tmp_path}/a", f"{tmp_path}/b"))
    for name in there:
        (tmp_path / name).touch()

    assert ctl_api.choose({}, {}).path == f"{tmp_path}/{chosen}"


def test_the_place_is_chosen_by_the_environment(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAVINMQCTL_HOST", f"http://127.0.0.1:{api.port}/prefix")
    api.answer("GET", "/prefix/api/users", content=[])

    assert run("list_users")[0] == 0


@pytest.mark.parametrize(
    ("options", "login"),
    [
        ([], None),
        (["--user", "a", "--password", "b:c"], b"a:b:c"),
        (["-U", "http://a%40b:c%2Fd@127.0.0.1:{port}"], b"a@b:c/d"),
        (["-U", "http://a:b@127.0.0.1:{port}", "--user", "x", "--password=y"], b"x:y"),
    ],
)
def test_a_login_is_sent_only_when_one_is_given(
    api: FakeApi, run: Run, options: list[str], login: bytes | None
) -> None:
    api.answer("GET", "/api/users", content=[])

    assert run("list_users", *[option.format(port=api.port) for option in options])[0] == 0

    header = api.requests[0].headers.get("Authorization")
    assert (header and b64decode(header.removeprefix("Basic "))) == login


@pytest.mark.parametrize("other", ["--hostname", "--port", "--scheme"])
@pytest.mark.parametrize("uri", ["-U", "-H", "--uri", "--host"])
def test_a_uri_and_its_parts_exclude_each_other(run: Run, uri: str, other: str) -> None:
    status, _, errors = run("list_users", uri, "http://h", other, "1")

    assert status == 1
    assert f"{other} cannot be used together with --" in errors


@pytest.mark.parametrize(
    "options",
    [["-U", "ftp://h"], ["-U", "http://h:x"], ["-U", "http://"], ["--port", "0"],
     ["--port", "x"], ["--port", "65536"], ["--scheme", "amqp"]],
)  # fmt: skip
def test_a_place_that_makes_no_sense_is_an_error(run: Run, options: list[str]) -> None:
    status, _, errors = run("list_users", *options)

    assert status == 1
    assert errors.startswith("Error: Invalid ")


# --- errors


def test_a_missing_socket_asks_whether_the_broker_runs(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none"

    assert run("list_users", "--control-unix-path", str(path)) == (
        1, "", f"Error: {path} not found. Is LavinMQ running?\n",
    )  # fmt: skip


def test_a_forbidden_socket_says_who_may(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_connection: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("lavinmq.cli.ctl.api._UnixConnection.connect", refuse)

    status, _, errors = run("list_users", "--control-unix-path", f"{tmp_path}/socket")

    assert status == 1
    assert f"{tmp_path}/socket may not be used" in errors
    assert "as root or as the user" in errors


def test_a_socket_that_nobody_listens_on_asks_whether_the_broker_runs(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    status, _, errors = run("list_users", "--control-unix-path", str(path))

    assert status == 1
    assert "Is LavinMQ running?" in errors


def test_nobody_listening_is_an_error_that_names_the_place(run: Run) -> None:
    status, output, errors = run("list_users", "--port", "1")

    assert (status, output) == (1, "")
    assert errors.startswith("Error: Cannot connect to http://localhost:1: ")


@pytest.mark.parametrize(
    ("status", "content", "text"),
    [
        (400, {"error": "bad_request", "reason": "No\x1b"}, "400 - Bad Request: No\x1b"),
        (401, b"", "401 - Unauthorized"),
        (404, {"error": "Object Not Found", "reason": "Not Found"}, "404 - Not Found"),
        (404, b"404 Not Found\n", "404 - Not Found"),
        (
            404,
            {"reason": "Not Found: there is no queue 'q'"},
            "404 - Not Found: there is no queue 'q'",
        ),
        (404, {"reason": "Not Founded"}, "404 - Not Found: Not Founded"),
        (500, b"<html>", "500 - Internal Server Error: <html>"),
    ],
)
def test_an_error_of_the_broker_goes_to_standard_error(
    api: FakeApi, run: Run, status: int, content: object, text: str
) -> None:
    api.answer("GET", "/api/queues/%2F", status, content)

    assert run("list_queues") == (1, "", f"Error: {text.replace(chr(27), chr(92) + 'x1b')}\n")


def test_a_follower_is_status_2_and_its_text_is_shown(api: FakeApi, run: Run) -> None:
    api.answer("GET", "/api/queues/%2F", 503, b"This node is a follower.\nAsk the leader.\n")

    status, output, errors = run("list_queues")

    assert (status, output) == (2, "")
    assert "This node is a follower" in errors


@pytest.mark.parametrize(
    "content", [b"hello", b"5", b"[5]", b'{"items": [5]}', b'{"items": []}', b"[" * 100_000]
)
def test_an_answer_that_makes_no_sense_is_an_error(api: FakeApi, run: Run, content: bytes) -> None:
    for path in ("overview", "queues/%2F"):
        api.answer("GET", f"/api/{path}", 200, content)

    if content[:1] != b"{":
        assert run("status")[0] == 1
    status, _, errors = run("list_queues")
    assert (status, errors) == (
        1, "Error: The answer makes no sense: is this the API of a broker?\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["nope"], "Invalid argument: nope"),
        (["--nope", "list_users"], "Invalid argument: --nope"),
        (["list_users", "--durable"], "Invalid argument: --durable"),
        (["list_users", "x"], "Invalid argument: x"),
        (["list_users", "-f", "xml"], "Invalid format: xml"),
        (["list_users", "-f"], "Missing value of option -f"),
        (["list_users", "-p", "--quiet"], "Missing value of option -p"),
        (["list_users", "--quiet=yes"], "Option --quiet takes no value"),
        (["set_permissions", "u", "c", "w"], "Missing argument: read"),
        (["add_shovel", "s", "--src-uri", "x"], "Missing option: --dest-uri"),
        (["add_shovel", "s", "--src-uri", "x", "--dest-uri", "y"], "--src-queue or --src-exchange"),
        (["add_federation", "f", "--uri", "x", "--ack-mode", "y"], "Invalid value of --ack-mode"),
        (["create_queue", "q", "--expires", "soon"], "'soon' is not a whole number"),
        (["set_policy", "p", ".*", "{"], "Invalid definition: not JSON"),
        (["set_policy", "p", ".*", "[]"], "Invalid definition: it has to be a JSON object"),
        (["set_parameter", "c", "n", "x"], "Invalid value: not JSON"),
        (["set_vhost_limits", "{}"], "max-queues or max-connections required"),
        (["set_vhost_limits", '{"max-queues": "5"}'], "max-queues has to be a whole number"),
        (
            ["set_vhost_limits", '{"max-conections": 1, "max-queues": 500}'],
            "Unknown limit 'max-conections', did you mean 'max-connections'?",
        ),
        (
            ["set_vhost_limits", '{"nope": 1}'],
            "Unknown limit 'nope', one of max-connections, max-queues",
        ),
        (["add_user", "", "x"], "The argument user is empty"),
        (["add_vhost", ""], "The argument vhost is empty"),
        (["delete_queue", ""], "The argument name is empty"),
        (["check_port_listener", "http"], "'http' is not a whole number"),
        (["check_certificate_expiration", "1", "eon"], "Invalid argument: eon"),
        (["completion", "tcsh"], "Invalid argument: tcsh"),
        (["completion", "bash", "--program", "x"], "Invalid value of --program"),
        (["help", "nope"], "Invalid argument: nope"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_an_error_before_anything_is_sent(
    api: FakeApi, run: Run, argv: list[str], text: str
) -> None:
    status, output, errors = run(*argv)

    assert (status, output) == (1, "")
    assert errors.startswith("Error: ")
    assert text in errors
    assert api.calls == []


def test_a_missing_argument_shows_the_usage(run: Run) -> None:
    _, _, errors = run("create_queue")

    assert errors.splitlines() == [
        "Error: Missing argument: name", "Usage: lavinmqctl create_queue [options] name",
    ]  # fmt: skip


def test_without_a_command_there_is_help_and_status_1(run: Run) -> None:
    status, output, errors = run()

    assert (status, output) == (1, "")
    assert errors.startswith("Usage: lavinmqctl ")


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, which is its own authority, with its key in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-days", "1", "-keyout", path, "-out", f"{path}.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def test_certificates_are_verified(
    run: Run, certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, certificate) as api:
        api.answer("GET", "/api/users", content=[])
        place = ["--hostname", "localhost", "--scheme", "https", "--port", str(api.port)]

        refused = run("-q", "list_users", *place)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        accepted = run("-q", "list_users", *place)

    assert refused[0] == 1
    assert "certificate verify failed" in refused[2].lower()
    assert accepted == (0, "name\ttags\n", "")


# --- the command line


@given(
    st.lists(
        st.sampled_from([c.name for c in ALL_COMMANDS])
        | st.sampled_from([o.long for c in ALL_COMMANDS for o in c.options])
        | st.sampled_from([o.short for o in GLOBAL_OPTIONS] + [o.long for o in GLOBAL_OPTIONS])
        | st.text(max_size=8),
        max_size=6,
    )
)
def test_any_command_line_is_understood_or_refused(argv: list[str]) -> None:
    try:
        line = parse(argv)
        command = check(line)
    except UsageError as error:
        assert str(error)
        return
    assert set(line.options) <= {option.long for option in command.options}
    assert set(line.global_options) <= {option.long for option in GLOBAL_OPTIONS}


@pytest.mark.parametrize(
    "argv",
    [
        ["-p", "v", "list_queues"],
        ["list_queues", "-pv"],
        ["-p=v", "list_queues"],
        ["list_queues", "--vhost", "v"],
        ["--vhost=v", "list_queues", "--", "name", "messages"],
        ["-qpv", "list_queues", "-n", "rabbit@x"],
    ],
)
def test_options_may_stand_anywhere(api: FakeApi, run: Run, argv: list[str]) -> None:
    api.answer("GET", "/api/queues/v", content=paged([]))

    assert run(*argv)[0] == 0


def test_behind_two_hyphens_everything_is_an_argument(api: FakeApi, run: Run) -> None:
    api.answer("DELETE", "/api/queues/%2F/--help", 204)

    assert run("delete_queue", "--", "--help")[0] == 0


def test_an_option_of_the_command_wins_over_a_global_one(api: FakeApi, run: Run) -> None:
    api.answer("PUT", "/api/parameters/federation-upstream/%2F/f", 204)
    place = f"http://127.0.0.1:{api.port}"

    assert run("-U", place, "add_federation", "f", "--uri", "amqp://up")[0] == 0

    assert api.requests[0].json()["value"]["uri"] == "amqp://up"


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_version_prints_the_version_only(run: Run, flag: str) -> None:
    assert run(flag) == (0, f"{__version__}\n", "")


def test_build_info_begins_with_the_version(run: Run) -> None:
    assert run("--build-info")[1].startswith(f"lavinmqctl {__version__}\n")


def test_help_names_every_command_in_its_group(run: Run) -> None:
    _, output, _ = run("--help")

    parts = dict(part.split(":\n", 1) for part in output.split("\n\n") if ":\n" in part)
    for group, commands in COMMANDS.items():
        for command in commands:
            assert f"    {command.name} " in parts[group]
    assert run("help")[1] == output


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command_names_its_options(run: Run, command: Command) -> None:
    status, output, _ = run(command.name, "--help")

    assert status == 0
    assert output == run("help", command.name)[1] == command_help(command)
    assert output.startswith(f"Usage: lavinmqctl [options] {command.name}")
    for option in command.options:
        assert f"{option.long} {option.argument}".rstrip() in output


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_function(command: Command) -> None:
    assert callable(ctl.function_of(command))


def test_a_reader_that_goes_away_is_no_traceback(api: FakeApi) -> None:
    rows = [{"name": "x" * 100, "messages": n} for n in range(5000)]
    api.answer("GET", "/api/queues/%2F", content=paged(rows))
    command = [sys.executable, "-m", "lavinmq.cli.ctl", "list_queues"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()

    assert errors == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "argv", [["list_queues"], ["-q", "list_users"], ["export_definitions"], ["--help"]]
)
def test_a_full_disk_below_the_output_is_one_line(
    api: FakeApi, argv: list[str], unbuffered: str
) -> None:
    """It was a traceback, and another one when the interpreter tried again at its end."""
    api.answer("GET", "/api/users", content=paged([{"name": "bo", "tags": ""}]))
    api.answer("GET", "/api/definitions", content={})
    api.answer("GET", "/api/queues/%2F", content=paged([{"name": "x" * 1000}] * 100))
    command = [sys.executable, "-m", "lavinmq.cli.ctl", *argv]

    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 1
    assert done.stderr == "Error: Cannot write the output: No space left on device\n"


@pytest.mark.parametrize("command", ["pause_shovel", "resume_shovel"])
def test_a_shovel_that_is_not_there_is_named(api: FakeApi, run: Run, command: str) -> None:
    action = command.partition("_")[0]
    api.answer("PUT", f"/api/shovels/v/nope/{action}", 404)

    assert run(command, "nope", "-p", "v") == (
        1, "", "Error: There is no shovel 'nope' in the virtual host 'v'\n",
    )  # fmt: skip


def test_nothing_of_http_is_loaded_without_need() -> None:
    program = (
        "import sys; from lavinmq.cli.ctl.__main__ import main; main(['help', 'status']);"
        "print([m for m in ('http.client', 'argparse', 'dataclasses', 'asyncio') if m in"
        " sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"
