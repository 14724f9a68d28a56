"""The user whom a client certificate names."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq.listeners.certificate import common_name, distinguished_name, subject_alternative_name


def subject(*parts: tuple[str, str]) -> dict[str, Any]:
    return {"subject": tuple((part,) for part in parts)}


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (subject(("organizationName", "Acme"), ("commonName", "carol")), "carol"),
        (subject(("organizationName", "Acme")), None),
        (subject(("commonName", "")), None),
        (subject(("commonName", "carol"), ("commonName", "admin")), None),
        ({"subject": ((("commonName", "carol"), ("commonName", "admin")),)}, None),
        ({}, None),
    ],
)
def test_one_common_name_is_a_user_and_two_are_nobody(
    certificate: dict[str, Any], name: str | None
) -> None:
    assert common_name(certificate) == name


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (
            subject(("countryName", "SE"), ("organizationName", "Acme"), ("commonName", "carol")),
            "CN=carol,O=Acme,C=SE",
        ),
        (subject(("organizationName", 'A, "B" + C\\')), 'O=A\\, \\"B\\" \\+ C\\\\'),
        (subject(("commonName", "#1 ")), "CN=\\#1\\ "),
        (subject(("emailAddress", "a@b")), "emailAddress=a@b"),
        ({"subject": ((("commonName", "a"), ("userId", "b")),)}, "CN=a+UID=b"),
        ({}, None),
    ],
)
def test_a_distinguished_name_is_written_from_its_end_and_escaped(
    certificate: dict[str, Any], name: str | None
) -> None:
    assert distinguished_name(certificate) == name


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ((("email", "a@b"), ("DNS", "first"), ("DNS", "second")), "first"),
        ((("URI", "urn:x"), ("email", "a@b")), "a@b"),
        ((("URI", "urn:x"),), "urn:x"),
        ((("IP Address", "1.2.3.4"),), None),
        ((), None),
    ],
)
def test_host_names_come_before_mail_addresses_and_uris(
    names: tuple[tuple[str, str], ...], name: str | None
) -> None:
    assert subject_alternative_name({"subjectAltName": names}) == name
