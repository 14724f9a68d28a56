"""Users over HTTP: passwords, hashes, tags; who may log in afterwards; refusals."""

from __future__ import annotations

import base64
import hashlib
from urllib.parse import quote

import pytest

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker

GUEST_HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"


def path_of(user: str) -> str:
    return f"/api/users/{quote(user, safe='')}"


def salted(kind: str, password: bytes) -> str:
    return base64.b64encode(b"salt" + hashlib.new(kind, b"salt" + password).digest()).decode()


@pytest.mark.parametrize("name", ["plain", "a/b", "..", "with space", "Ærø ☃", "x" * 200])
def test_a_user_of_any_name_logs_in_until_deleted(
    broker: Broker, api: Api, unique: UniqueName, name: str
) -> None:
    user = f"{name}{unique('u')}"
    api("PUT", path_of(user), {"password": "päss:word", "tags": "management"})

    assert Api(broker, user, "päss:word").get("/api/whoami") == {"name": user, "tags": "management"}
    assert Api(broker, user, "wrong")("GET", "/api/whoami").status == 401
    assert api.get(path_of(user))["name"] == user
    assert api("DELETE", path_of(user)).status == 204
    assert api("DELETE", path_of(user)).status == 404
    assert Api(broker, user, "päss:word")("GET", "/api/whoami").status == 401


@pytest.mark.parametrize("kind", ["sha256", "sha512", "md5"])
@pytest.mark.parametrize("spelling", ["{}", "RABBIT_PASSWORD_HASHING_{}", "rabbit_password_{}"])
def test_a_hash_made_elsewhere_is_taken(
    broker: Broker, api: Api, unique: UniqueName, kind: str, spelling: str
) -> None:
    user = unique("u")
    body = {"password_hash": salted(kind, b"secret"), "hashing_algorithm": spelling.format(kind)}

    assert api("PUT", path_of(user), body | {"tags": "monitoring"}).status == 201

    assert Api(broker, user, "secret").get("/api/whoami")["name"] == user


def test_an_empty_hash_forbids_log_in(broker: Broker, api: Api, unique: UniqueName) -> None:
    user = unique("u")
    api("PUT", path_of(user), {"password": "x", "tags": "management"})

    assert api("PUT", path_of(user), {"password_hash": ""}).status == 204

    shown = api.get(path_of(user))
    assert (shown["password_hash"], shown["hashing_algorithm"]) == ("", None)
    assert shown["tags"] == "management"
    assert Api(broker, user, "x")("GET", "/api/whoami").status == 401


def test_giving_the_present_password_again_keeps_the_hash(api: Api, unique: UniqueName) -> None:
    """Tools put whole objects again and again, and compare what they get."""
    user = unique("u")
    api("PUT", path_of(user), {"name": user, "password": "x", "tags": ""})
    before = api.get(path_of(user))

    assert api("PUT", path_of(user), {"name": user, "password": "x", "tags": ""}).status == 204

    assert api.get(path_of(user)) == before
    assert before["tags"] == ""


def test_unknown_tags_are_dropped_and_none_left_alone(api: Api, unique: UniqueName) -> None:
    user = unique("u")
    api("PUT", path_of(user), {"password": "x", "tags": " monitoring,nope,Management,monitoring"})

    assert api.get(path_of(user))["tags"] == "monitoring,management"
    api("PUT", path_of(user), {"password": "y"})
    assert api.get(path_of(user))["tags"] == "monitoring,management"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Field 'password_hash' or 'password' is required when creating new user"),
        ({"password_hash": None}, "is required when creating new user"),
        ({"password": 5}, "Field 'password' must be a string"),
        ({"password_hash": 5}, "Field 'password_hash' must be a string or null"),
        ({"password": "x", "tags": ["administrator"]}, "Field 'tags' must be a string"),
        ({"password_hash": "zz", "hashing_algorithm": "sha1"}, "unknown algorithm 'sha1'"),
        ({"password_hash": "not base64!"}, "Invalid password hash: not base64"),
        ({"password_hash": "c2hvcnQ="}, "Invalid password hash: too short"),
        ({"pasword": "x"}, "did you mean 'password'"),
        ([], "Request body has to be a JSON object"),
    ],
)
def test_a_bad_body_makes_no_user(api: Api, unique: UniqueName, body: object, reason: str) -> None:
    user = unique("u")

    answer = api("PUT", path_of(user), body)

    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert api("GET", path_of(user)).status == 404


@pytest.mark.parametrize(
    ("name", "status"),
    [("__direct", 400), ("n" * 256, 400), ("%FF", 400), ("a%00b", 400), ("", 404), ("a/b", 404)],
)
def test_names_that_cannot_be_one(api: Api, name: str, status: int) -> None:
    assert api("PUT", f"/api/users/{name}", {"password": "x"}).status == status


def test_malformed_and_oversized_bodies(broker_factory: BrokerFactory) -> None:
    env = {"LAVINMQ_MGMT_MAX_BODY_SIZE": "4096"}
    api = Api(broker_factory(http=True, env=env))

    assert api("PUT", "/api/users/u", raw=b'{"password": ').json["reason"] == "Malformed JSON"
    assert api("PUT", "/api/users/u", {"password": "x" * 5000}).status == 413
    form = {"Content-Type": "text/plain"}
    assert api("PUT", "/api/users/u", {"password": "x"}, headers=form).status == 415
    assert [user["name"] for user in api.get("/api/users")] == ["guest"]


def test_several_are_deleted_at_once_and_for_good(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    api = Api(broker)
    for user in ("a", "b", "c"):
        api("PUT", path_of(user), {"password": "x"})

    assert api("POST", "/api/users/bulk-delete", {"users": ["a", "nobody", "b", "a"]}).status == 204

    broker.kill()
    broker.start()
    assert [user["name"] for user in api.get("/api/users")] == ["guest", "c"]


def test_users_without_permissions_are_listed(api: Api, unique: UniqueName) -> None:
    with_some, without = unique("u"), unique("u")
    api.as_user(with_some, "", **{"/": ("", "", "")})
    api.as_user(without, "")

    names = [user["name"] for user in api.get("/api/users/without-permissions")]

    assert without in names
    assert with_some not in names


@pytest.mark.parametrize("tags", ["management", "monitoring", "policymaker", "impersonator"])
def test_only_administrators_see_and_change_users(api: Api, unique: UniqueName, tags: str) -> None:
    name = unique("u")
    other = api.as_user(name, tags, **{"/": (".*", ".*", ".*")})

    requests = [
        ("GET", "/api/users", None), ("GET", path_of(name), None), ("DELETE", path_of(name), None),
        ("PUT", path_of(name), {"tags": "administrator"}),
        ("POST", "/api/users/bulk-delete", {"users": [name]}),
        ("GET", f"{path_of(name)}/permissions", None),
        ("GET", "/api/users/without-permissions", None),
        ("PUT", f"/api/permissions/%2F/{name}", {"configure": "", "read": "", "write": ""}),
    ]  # fmt: skip
    assert [other(*request).status for request in requests] == [403] * len(requests)
    assert other.get("/api/whoami")["tags"] == tags


def test_a_hash_of_the_api_can_be_used(broker: Broker, api: Api, unique: UniqueName) -> None:
    answer = api("PUT", "/api/auth/hash_password", {"password": "secret"})
    user = unique("u")
    api("PUT", path_of(user), {"password_hash": answer.json["password_hash"], "tags": "management"})

    assert Api(broker, user, "secret").get("/api/whoami")["name"] == user
    assert api("GET", "/api/auth").status == 404
