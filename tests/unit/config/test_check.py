"""What --check-config finds without starting a broker."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lavinmq.config import check
from lavinmq.config.check import doubts, problems
from lavinmq.config.service_unit import ServiceUnit
from lavinmq.config.values import load
from tests.support.configuration import Loader, load_ini

__all__ = ["load_ini"]  # fixtures

Found = Callable[..., list[str]]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def found(load_ini: Loader, tmp_path: Path) -> Found:
    """Returns the problems of an ini text on a data directory that is good."""

    def check(text: str, *argv: str) -> list[str]:
        place = ["-D", str(tmp_path / "data"), "--control-unix-path", str(tmp_path / "ctl")]
        return problems(load_ini(text, *place, *argv))

    return check


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate `cert.pem` with its key `key.pem`, and the key of another, `other.pem`."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    for name in ("key", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-subj", "/CN=x", "-days", "1", "-keyout", directory / f"{name}.pem",
             "-out", directory / ("cert.pem" if name == "key" else "unused.pem")],
            check=True, capture_output=True,
        )  # fmt: skip
    return directory


def test_the_defaults_are_good(found: Found) -> None:
    assert found("") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[main]\nlog_file = {tmp}", "'log_file' in [main]: '{tmp}': is a directory"),
        ("[main]\npidfile = {tmp}/no/pid",
         "'pidfile' in [main]: '{tmp}/no/pid': cannot be made in '{tmp}/no'"),
        ("[amqp]\nport = 15672", "both are port 15672 of 127.0.0.1"),
        ("[amqp]\nbind = ::\nport = 15672", "both are port 15672 of"),
        ("[amqp]\nbind = 300.0.0.1", "'bind' in [amqp]: '300.0.0.1': "),
        ("[clustering]\nenabled = 1\nbind = 300.0.0.1", "'bind' in [clustering]: '300.0.0.1': "),
        ("[clustering]\nenabled = 1\nport = 5672", "'port' in [clustering]: both are port 5672"),
        ("[amqp]\nunix_path = {tmp}/ctl", "both are '{tmp}/ctl'"),
        ("[amqp]\nunix_path = {tmp}/file", "'{tmp}/file': is there and is no socket"),
        ("[mgmt]\nunix_path = {tmp}/no/s", "cannot be made in '{tmp}/no'"),
        ("[main]\nload_definitions = {tmp}/no", "'load_definitions' in [main]: '{tmp}/no': No"),
        ("[main]\nload_definitions = {tmp}/file", "not JSON"),
        ("[main]\nload_definitions = {tmp}/list", "not a JSON object"),
        ("[main]\ntls_cert = {tmp}/no", "'tls_cert' in [main]: '{tmp}/no': cannot be read"),
        ("[main]\ntls_cert = {tmp}/file", "'tls_cert' in [main]: '{tmp}/file': "),
        ("[main]\ntls_key = {tmp}/file", "'tls_key' in [main]: there is no tls_cert"),
        ("[main]\ntls_ca_cert = {tmp}/no", "'tls_ca_cert' in [main]: '{tmp}/no': "),
        ("[main]\ntls_crl = {tmp}/file", "'tls_crl' in [main]: '{tmp}/file': "),
        ("[main]\ntls_ciphers = nonsense", "'tls_ciphers' in [main]: 'nonsense': no such cipher"),
        ("[main]\ntls_verify_peer = yes", "'tls_verify_peer' in [main]: there is no tls_ca_cert"),
        ("[clustering]\nenabled = true\ntls_cert = {tmp}/no\ntls_key = {tmp}/no\n"
         "tls_ca_cert = {tmp}/no", "'tls_cert' in [clustering]: '{tmp}/no': cannot be read"),
        ("[sni:a]\ntls_cert = {tmp}/no", "'tls_cert' in [sni:a]: '{tmp}/no': cannot be read"),
        ("[sni:a]\ntls_cert = {tmp}/no\namqp_tls_verify_peer = on",
         "'amqp_tls_verify_peer' in [sni:a]: there is no tls_ca_cert"),
    ],
)  # fmt: skip
def test_a_problem_names_the_setting(found: Found, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "list").write_text("[]")

    lines = found(text.replace("{tmp}", str(tmp_path)))

    assert any(problem.replace("{tmp}", str(tmp_path)) in line for line in lines), lines


def test_a_data_directory_that_is_a_file_is_a_problem(found: Found, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    assert "is no directory" in found("", "-D", f"{tmp_path}/file")[0]
    assert "cannot be made in" in found("", "-D", f"{tmp_path}/file/data")[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_without_permission_is_a_problem(found: Found, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)

    assert "not readable and writable" in found("")[0]


def test_a_certificate_and_its_key_are_good(found: Found, certificate: Path) -> None:
    text = f"tls_cert = {certificate}/cert.pem\ntls_key = {certificate}/key.pem\n"

    assert found(f"[main]\n{text}tls_ca_cert = {certificate}/cert.pem\ntls_verify_peer = 1\n") == []
    assert found(f"[sni:a]\n{text}") == []
    nodes = f"[clustering]\nenabled = true\n{text}tls_ca_cert = {certificate}/cert.pem\n"
    assert found(nodes) == []


def test_a_key_of_another_certificate_is_a_problem(found: Found, certificate: Path) -> None:
    text = f"[main]\ntls_cert = {certificate}/cert.pem\ntls_key = {certificate}/other.pem\n"

    (line,) = found(text)

    assert "key values mismatch" in line


def test_a_port_in_use_is_no_problem(found: Found) -> None:
    """A running broker must not make the check of its own configuration fail."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert found(f"[amqp]\nport = {server.getsockname()[1]}\n") == []


def test_single_sign_on_that_is_configured_by_half_is_a_doubt(load_ini: Loader) -> None:
    config = load_ini("[oauth]\nissuer = https://a\n")

    assert doubts(config) == [
        "single sign-on stays off: [oauth] has no client_id and no mgmt_base_url"
    ]
    assert doubts(load_ini("")) == []


# --- the service ------------------------------------------------------------------------------


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The configuration that is loaded is that of a service, in a unit like the packaged one."""
    unit = (ROOT / "packaging/systemd/lavinmq.service").read_text()
    unit = unit.replace("/etc/lavinmq/lavinmq.ini", f"{tmp_path}/lavinmq.ini")
    monkeypatch.setattr("lavinmq.config.service_unit.installed", lambda: ServiceUnit([unit]))


@pytest.mark.parametrize("key", ["data_dir", "log_file", "pidfile", "control_unix_path"])
def test_what_the_service_may_not_write_is_a_problem(
    service: None, load_ini: Loader, key: str
) -> None:
    lines = problems(load_ini(f"[main]\n{key} = /opt/somewhere\n"))

    why = "the service may not write there: add ReadWritePaths= (systemctl edit lavinmq)"
    assert f"'{key}' in [main]: '/opt/somewhere': {why}" in lines


def test_another_file_than_that_of_the_service_is_not_its_business(
    service: None, load_ini: Loader, tmp_path: Path
) -> None:
    (tmp_path / "other.ini").write_text("[main]\ndata_dir = /opt/somewhere\n")
    load_ini("")

    lines = problems(load(["-c", f"{tmp_path}/other.ini"], {}))

    assert not any("the service" in line for line in lines)


def test_a_data_directory_of_somebody_else_is_a_problem_of_the_service(
    service: None, load_ini: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = pwd.struct_passwd(("lavinmq", "", os.getuid() + 1, 0, "", "/", "/bin/false"))
    monkeypatch.setattr("pwd.getpwnam", lambda _name: user)

    lines = problems(load_ini("", "-D", str(tmp_path)))

    assert any("the service runs as lavinmq, to whom it does not belong" in line for line in lines)


def test_a_directory_of_a_socket_below_run_need_not_be_there(
    load_ini: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "RUN", str(tmp_path))
    for place, is_good in (("lavinmq", True), ("no/such", False)):
        lines = problems(load_ini(f"[main]\ncontrol_unix_path = {tmp_path}/{place}/s\n"))
        assert any("cannot be made in" in line for line in lines) != is_good


def test_a_control_socket_that_lavinmqctl_does_not_find_is_told(load_ini: Loader) -> None:
    (line,) = doubts(load_ini("[main]\ncontrol_unix_path = /srv/ctl\n"))

    assert line.startswith("'control_unix_path' in [main]: '/srv/ctl': lavinmqctl looks for '/run/")
    assert "LAVINMQCTL_CONTROL_UNIX_PATH" in line
    assert doubts(load_ini("[main]\ncontrol_unix_path = /run/lavinmq/lavinmqctl.sock\n")) == []
    assert doubts(load_ini("[main]\ncontrol_unix_path =\n")) == []


def test_a_control_socket_in_a_private_directory_is_told(service: None, load_ini: Loader) -> None:
    (line,) = doubts(load_ini("[main]\ncontrol_unix_path = /tmp/lavinmqctl.sock\n"))

    assert "the service has a /tmp of its own" in line
    assert doubts(load_ini("")) == []
