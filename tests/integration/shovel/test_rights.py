"""What a policymaker of one virtual host cannot do by parameters: use others' logins, see them, or
reach what permissions do not allow."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq.client import Client
from tests.integration.shovel.conftest import Bench, bodies, fill, until
from tests.support.api import Answer, Api

DEADLINE_S = 150.0

MINE = {"src-uri": "amqp://", "src-queue": "mine", "dest-uri": "amqp://", "dest-queue": "mine2"}
SHOVEL, UPSTREAM = "shovel/%2F", "federation-upstream/%2F"


def put(api: Api, path: str, value: Any) -> Answer:
    return api("PUT", f"/api/parameters/{path}", {"value": value})


@pytest.fixture
def maker(bench: Bench) -> Api:
    """A policymaker who may use what begins with `mine`."""
    with Client(bench.broker.uri) as client:
        for queue in ("mine", "secret"):
            client.queue(queue)
        client.exchange("secretex", "fanout")
        client.exchange("minex", "topic")
    return bench.api.as_user("maker", "policymaker", **{"/": ("^mine", "^mine", "^mine")})


@pytest.mark.parametrize("login", ["@", ":@", ":guest@", "guest:guest@", "gu%65st:guest@"])
@pytest.mark.parametrize("side", ["src-uri", "dest-uri"])
def test_nobody_becomes_the_default_user(bench: Bench, maker: Api, login: str, side: str) -> None:
    uri = f"amqp://{login}127.0.0.1:{bench.broker.port}/"
    answer = put(maker, f"{SHOVEL}/s", MINE | {side: uri})
    assert answer.status == 400 and b"administrators" in answer.content
    assert put(maker, f"{UPSTREAM}/u", {"uri": uri}).status == 400


@pytest.mark.parametrize(
    "more",
    [
        {"src-queue": "secret"},
        {"dest-queue": "secret"},
        {"src-queue-args": {"x-dead-letter-exchange": "secretex"}},
        {"dest-queue-args": {"x-dead-letter-exchange": "secretex"}},
        {"dest-publish-properties": {"user_id": "guest"}},
        {"dest-publish-properties": {"headers": {"CC": ["secret"]}}},
        {"dest-publish-properties": {"headers": {"BCC": ["secret"]}}},
        {"src-uri": "amqp:///other"},
        {"src-uri": "amqp://u:p@h/?cacertfile=/etc/passwd"},
        {"src-uri": " amqp://u:p@h/"},
        {"src-uri": "amqp://u:p@h/?frame_max=134217728"},
        {"dest-uri": "amqp://u:p@h/?max_message_size=2147483648"},
        {"src-uri": "am\tqp://u:p@h/"},
    ],
)
def test_what_permissions_do_not_allow_is_refused(maker: Api, more: dict[str, Any]) -> None:
    answer = put(maker, f"{SHOVEL}/s", MINE | more)
    assert answer.status == 400, answer


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="},
        {"authorization": "bAsIc  Z3Vlc3Q6Z3Vlc3Q"},
        {"Proxy-Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q"},
        {"X-A": "b", "Authorization": "basic Z3Vl c3Q6Z3Vlc3Q="},
        {"Cookie": "m=%7Cauth:Z3Vlc3Q6Z3Vlc3Q%3D"},
    ],
)
def test_no_webhook_logs_in_as_the_default_user(
    bench: Bench, maker: Api, headers: dict[str, str]
) -> None:
    """The API of this broker hears it from its own machine, as administrator."""
    hook = {"dest-uri": f"http://127.0.0.1:{bench.broker.http_port}/api/definitions",
            "src-uri": "amqp://", "src-queue": "mine", "dest-headers": headers}  # fmt: skip
    answer = put(maker, f"{SHOVEL}/s", hook)
    assert answer.status == 400 and b"administrators" in answer.content
    hook["dest-headers"] = {"Authorization": "Bearer Z3Vlc3Q6"}
    assert put(maker, f"{SHOVEL}/s", hook).status == 201


def test_topic_permissions_count_for_the_key_of_the_source(bench: Bench, maker: Api) -> None:
    rights = {"exchange": "minex", "read": "^a$", "write": "^a$"}
    assert bench.api("PUT", "/api/topic-permissions/%2F/maker", rights).status < 300
    source = {"src-uri": "amqp://", "src-exchange": "minex", "dest-uri": "amqp://",
              "dest-queue": "mine2"}  # fmt: skip
    for key, status in (("#", 400), ("b", 400), ("", 400), ("a", 201)):
        assert put(maker, f"{SHOVEL}/s", source | {"src-exchange-key": key}).status == status


def test_a_queue_is_bound_by_who_may_write_to_it_alone(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        client.queue("mine")
        client.exchange("minex", "topic")
    reader = bench.api.as_user("reader", "policymaker", **{"/": ("^mine", "^mine2", "^mine")})
    value = MINE | {"src-exchange": "minex", "src-exchange-key": "#"}
    assert put(reader, f"{SHOVEL}/s", value).status == 400


def test_copies_of_a_message_do_not_choose_other_keys(bench: Bench, maker: Api) -> None:
    with Client(bench.broker.uri) as client:
        for key in ("wanted", "other"):
            client.queue(f"mine-{key}")
            client.bind(f"mine-{key}", "minex", key)
        value = {key: MINE[key] for key in ("src-uri", "src-queue", "dest-uri")}
        more = {"dest-exchange": "minex", "dest-exchange-key": "wanted"}
        assert put(maker, f"{SHOVEL}/s", value | more).status == 201
        client.producer("mine").publish(b"m", headers={"CC": ["other"]}).result(20)
        assert bodies(client, "mine-wanted", 1) == [b"m"]
        assert bench.ready("mine-other") == 0


def test_secrets_go_nowhere_else(bench: Bench, maker: Api) -> None:
    value = {
        "src-uri": "amqp://", "src-queue": "mine", "dest-uri": "https://api.example/hook",
        "dest-headers": {"Authorization": "Bearer TOKEN"}, "dest-secret": "whsec_c2VjcmV0c2VjcmV0",
    }  # fmt: skip
    assert put(bench.api, f"{SHOVEL}/s", value).status == 201
    shown = maker.get(f"/api/parameters/{SHOVEL}/s")["value"]
    assert "TOKEN" not in str(shown) and "c2VjcmV0" not in str(shown)

    answer = put(maker, f"{SHOVEL}/s", shown | {"dest-uri": "https://mine.example/steal"})
    assert answer.status == 400, answer

    assert put(maker, f"{SHOVEL}/s", shown | {"reconnect-delay": 9}).status == 204
    stored = bench.api.get(f"/api/parameters/{SHOVEL}/s")["value"]
    assert stored == value | {"reconnect-delay": 9}


def test_a_login_reads_nothing_else(bench: Bench, maker: Api) -> None:
    value = MINE | {"src-uri": f"amqp://bob:PASSWORD@127.0.0.1:{bench.broker.port}/"}
    assert put(bench.api, f"{SHOVEL}/s", value).status == 201
    shown = maker.get(f"/api/parameters/{SHOVEL}/s")["value"]
    for change in ({"src-queue": "secret"}, {"src-exchange": "secretex"}, {"dest-queue": "mine3"}):
        assert put(maker, f"{SHOVEL}/s", shown | change).status == 400, change


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://bob@corp.example:PASSWORD@host/",
        "https://bob@corp.example:PASSWORD@host/",
        "https://host/hook?key=PASSWORD",
        "amqp://bob:PASSWORD@[::1]:5672/",
    ],
)
def test_no_password_is_shown(bench: Bench, maker: Api, uri: str) -> None:
    value = {key: each for key, each in MINE.items() if key != "dest-queue"} | {"dest-uri": uri}
    value |= {} if uri.startswith("https") else {"dest-queue": "mine2"}
    assert put(bench.api, f"{SHOVEL}/s", value).status == 201
    for path in (f"parameters/{SHOVEL}/s", "parameters", "shovels", "parameters/shovel"):
        assert "PASSWORD" not in str(maker.get(f"/api/{path}")), path


def test_a_set_leads_the_login_of_an_upstream_nowhere_else(bench: Bench, maker: Api) -> None:
    assert put(bench.api, f"{UPSTREAM}/u", {"uri": "amqp:///", "queue": "mine"}).status == 201
    path = "federation-upstream-set/%2F/s"
    for change in ({"queue": "secret"}, {"exchange": "secretex"}):
        assert put(maker, path, [{"upstream": "u", **change}]).status == 400
    assert put(maker, path, [{"upstream": "u", "prefetch-count": 5}]).status == 201
    assert put(bench.api, path, [{"upstream": "u", "queue": "secret"}]).status == 204


def test_numbers_go_on_over_pauses(bench: Bench) -> None:
    with Client(bench.broker.uri) as client:
        fill(client, "from", 100)
        bench.put("s", src_uri="amqp://", src_queue="from", dest_uri="amqp://", dest_queue="to",
                  src_delete_after=300)  # fmt: skip
        until(lambda: bench.row("s")["confirmed"] == 100, "what is there is moved")
        assert bench.ask("s", "pause") == 204
        until(lambda: bench.state("s") == "Paused", "it is paused")
        assert bench.ask("s", "resume") == 204
        fill(client, "from", 500)
        until(lambda: bench.is_gone("s"), "it goes")
        assert client.queue("to").message_count == 300
        assert client.queue("from").message_count == 300
