"""Where a node is reached and finds etcd: what is wrong with that names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavinmq.cluster import places
from tests.support.configuration import Loader, load_ini

__all__ = ["load_ini"]  # fixtures


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("etcd_endpoints = http://a:b:c",
         "'etcd_endpoints' in [clustering]: 'http://a:…' is no etcd endpoint"),
        ("etcd_endpoints = ,", "'etcd_endpoints' in [clustering]: there is no etcd endpoint"),
        ("etcd_endpoints = https://a\netcd_ca_cert = {tmp}/no",
         "'etcd_ca_cert' or 'etcd_cert' in [clustering]: '{tmp}/no' holds no authorities"),
        ("etcd_cert = {tmp}/no", "of 'etcd_cert' and 'etcd_key' in [clustering] one is missing"),
        ("advertised_uri = http://node1:99999/x",
         "'advertised_uri' in [clustering]: 'http://node1:99999/x' is no tcp://host:port"),
        ("advertised_uri = tcp://node1:99999",
         "'advertised_uri' in [clustering]: 'tcp://node1:99999' is no tcp://host:port"),
        ("advertised_uri = tcp://[a", "'advertised_uri' in [clustering]: 'tcp://[a' is no tcp://"),
    ],
)  # fmt: skip
def test_a_place_that_is_none_names_its_setting(
    load_ini: Loader, tmp_path: Path, text: str, problem: str
) -> None:
    config = load_ini("[clustering]\nenabled = true\n" + text.replace("{tmp}", str(tmp_path)))

    (line,) = places.problems(config)

    assert line.startswith(problem.replace("{tmp}", str(tmp_path)))


def test_good_places_are_no_problem(load_ini: Loader) -> None:
    text = "etcd_endpoints = http://u:p@etcd1:2379, [::1]\nadvertised_uri = tcp://node1"

    for each in ("", text):
        assert list(places.problems(load_ini(f"[clustering]\nenabled = true\n{each}\n"))) == []
