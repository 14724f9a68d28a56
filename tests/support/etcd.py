"""etcd as Debian has it, of one member or more, on free ports and below a directory of the test.

Elections are quick and nothing is synced to disk. `/usr/bin/etcd` comes with `etcd-server`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.support.certificates import Authority, Identity
from tests.support.patience import PATIENCE
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for

PROGRAM = Path(os.environ.get("LAVINMQ_TEST_ETCD", "/usr/bin/etcd"))
"""Another release than Debian's: LAVINMQ_TEST_ETCD."""
WHY_NOT = "" if PROGRAM.exists() else f"no {PROGRAM}: install the package etcd-server"
"""Why tests with it are skipped; empty if they are not."""
HEARTBEAT_MS, ELECTION_MS = 50, 500
START_S = 20.0 * PATIENCE
REFUSED = 599
"""The status of no answer."""


class Tls(NamedTuple):
    """What members and their clients show, and whom they trust."""

    authority: Authority
    identity: Identity


class Member:
    """One process. It may be started again after `stop` and `kill`."""

    def __init__(self, directory: Path, name: str, tls: Tls | None = None) -> None:
        self.name = name
        self._tls = tls
        self._context = tls and tls.authority.client_context(tls.identity)
        self.host = HOST
        self.within: list[str] = []
        """What stands in front of its command."""
        self.client_port, self.peer_port = free_port(), free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients find it."""
        return f"{self.host}:{self.client_port}"

    def url(self, path: str = "") -> str:
        """Of its API for clients."""
        return f"{'http' if self._tls is None else 'https'}://{self.endpoint}{path}"

    @property
    def peer_url(self) -> str:
        """Where other members find it."""
        return f"http://{self.host}:{self.peer_port}"

    @property
    def log(self) -> Path:
        """What it has written."""
        return self._directory / f"{self.name}.log"

    def start(self, members: list[Member]) -> None:
        """Start it as one of these."""
        client_url = self.url()
        flags = {
            "name": self.name,
            "data-dir": str(self._directory / self.name),
            "listen-client-urls": client_url,
            "advertise-client-urls": client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(f"{each.name}={each.peer_url}" for each in members),
            "initial-cluster-token": self._directory.name,
            "heartbeat-interval": str(HEARTBEAT_MS),
            "election-timeout": str(ELECTION_MS),
            "bcrypt-cost": "4",
            "logger": "zap",
            "log-level": "warn",
        }
        if self._tls is not None:
            flags |= {
                "cert-file": str(self._tls.identity.cert), "key-file": str(self._tls.identity.key),
                "trusted-ca-file": str(self._tls.authority.path), "client-cert-auth": "true",
            }  # fmt: skip
        # The settings of an etcd of this machine are not those of the test.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.within, PROGRAM, *(f"--{name}={value}" for name, value in flags.items())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT, for example."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once; it keeps what it has written."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def ask(self, path: str, fields: dict[str, Any], token: str = "") -> tuple[int, dict[str, Any]]:
        """Status and content of an answer, by another client than ours."""
        headers = {"Authorization": token} if token else {}
        try:
            with self.open(path, fields, 2, headers) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")
        except OSError as error:
            return REFUSED, {"error": str(error)}

    def open(
        self, path: str, fields: dict[str, Any], timeout_s: float,
        headers: dict[str, str] | None = None,
    ) -> http.client.HTTPResponse:  # fmt: skip
        """An answer, to be read. Raises: OSError."""
        request = urllib.request.Request(
            self.url(f"/v3/{path}"), json.dumps(fields).encode(), headers or {}
        )
        found: http.client.HTTPResponse = urllib.request.urlopen(
            request, timeout=timeout_s, context=self._context
        )
        return found

    def is_ready(self) -> bool:
        """Whether it answers, and knows a leader."""
        status, fields = self.ask("kv/range", {"key": "YQ=="})
        return status == 200 or "user name is empty" in str(fields)


class EtcdCluster:
    """Members that know each other. Use it as a context manager.

    Args: tls: clients need a certificate of this authority; members show this one.
    """

    def __init__(self, directory: Path, n_members: int = 1, tls: Tls | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.tls = tls
        self.members = [Member(directory, f"m{number}", tls) for number in range(n_members)]

    @property
    def endpoints(self) -> list[str]:
        """Of all members."""
        return [each.endpoint for each in self.members]

    def __enter__(self) -> EtcdCluster:
        began = time.monotonic()
        try:
            for each in self.members:
                each.start(self.members)
            for each in self.members:
                left_s = max(0.1, began + START_S - time.monotonic())
                wait_for(each.is_ready, f"{each.name} is not ready: see {each.log}", left_s)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.stop()

    def restart(self, member: Member) -> None:
        """End a member and start it again."""
        member.kill()
        member.start(self.members)
        wait_for(member.is_ready, f"{member.name} is not ready: see {member.log}", START_S)

    def stop(self) -> None:
        """End all members."""
        for each in self.members:
            each.kill()

    def ask(self, path: str, **fields: Any) -> dict[str, Any]:
        """What the first member answers, which has to be good."""
        status, found = self.members[0].ask(path, fields)
        assert status == 200, found
        return found

    def leader(self) -> Member:
        """The member that leads, as the members say."""
        ids = {}
        lead = None
        for each in self.members:
            status, found = each.ask("maintenance/status", {})
            if status == 200:
                ids[found["header"]["member_id"]] = each
                lead = found.get("leader", lead)
        assert lead in ids, f"no leader: {lead}"
        return ids[lead]
