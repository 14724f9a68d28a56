"""Which pages are ours: names, ports and schemes as browsers write them."""

from __future__ import annotations

import pytest

from lavinmq.config.values import Config, defaults
from lavinmq.http.access import same_origin
from lavinmq.http.errors import ApiError

LOOPBACK = same_origin.Reached("127.0.0.1", ("machine",), False)


def is_served(
    host: str, origin: str | None, reached: same_origin.Reached = LOOPBACK,
    config: Config | None = None, method: str = "DELETE",
) -> bool:  # fmt: skip
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    try:
        same_origin.check(
            config or defaults(), reached, method, "/api/x", headers, is_upgrade=False
        )
    except ApiError as error:
        assert error.status == 403
        return False
    return True


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:15672", "http://localhost:15672"),
        ("LocalHost:15672", "http://LOCALHOST:15672"),
        ("localhost", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("localhost:80", "http://localhost"),
        ("[::1]:15672", "http://[::1]:15672"),
        ("127.0.0.1", "https://127.0.0.1"),  # a proxy has ended TLS
        ("localhost:15672", None),
    ],
)
def test_a_page_of_the_same_name_and_port_is_ours(host: str, origin: str | None) -> None:
    assert is_served(host, origin)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost", "http://localhost:15671", "http://localhost.evil:15672", "null", "",
        "http://127.0.0.1:15672", "ftp://localhost:15672", "localhost:15672", "http://",
        "http://evil@localhost:15672", "https://localhost:443",
    ],
)  # fmt: skip
def test_every_other_page_is_a_stranger(origin: str) -> None:
    assert not is_served("localhost:15672", origin)


def test_a_plain_page_is_a_stranger_where_we_end_tls() -> None:
    reached = LOOPBACK._replace(is_tls=True)
    assert is_served("localhost", "https://localhost", reached)
    assert not is_served("localhost", "http://localhost", reached)


def test_the_address_for_single_sign_on_is_ours() -> None:
    config = defaults()
    config.oauth_mgmt_base_url = "https://Broker.example/prefix/"
    assert is_served("localhost", "https://broker.example", config=config)
    assert not is_served("localhost", "https://broker.example.evil", config=config)
    assert not is_served("localhost", "https://broker.exampl", config=config)
    assert not is_served("localhost", "http://broker.example", config=config)


@pytest.mark.parametrize(
    "name",
    ["localhost", "localhost.", "127.0.0.1", "127.255.255.254", "::1", "machine", "MACHINE"],
)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.0.1.1", "::ffff:127.0.0.1"])
def test_names_of_this_machine_are_known_at_loopback(name: str, address: str) -> None:
    host = f"[{name}]:1" if ":" in name else f"{name}:1"
    assert is_served(host, None, LOOPBACK._replace(address=address))


@pytest.mark.parametrize(
    "host",
    [
        "evil", "127.0.0.1.evil", "127.evil.0.1", "127.0.0", "128.0.0.1", "127.0.0.x", "::1",
        "localhost,localhost", "evil:127.0.0.1", "[::1", "127.0.0.²", "localhost..",
    ],
)  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    assert is_served(host, None, method="GET") == (host == "[::1")
    assert is_served(host, None, LOOPBACK._replace(address="192.0.2.1"))
    assert is_served(host, None, LOOPBACK._replace(address=None))


def test_who_says_no_host_is_no_browser() -> None:
    assert is_served("", None)
