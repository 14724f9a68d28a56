#!/usr/bin/env python3
"""Write the vhosts and users that recorded transcripts need into a data directory.

    prepare.py DATA_DIR FOLDER [FOLDER ...]

For a broker without an HTTP API: start it on DATA_DIR afterwards and run replay.py --no-admin.
Existing users.json and vhosts.json in DATA_DIR are replaced. Passwords are "<user>-pw", as
replay.py expects.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EVERYTHING = {"config": ".*", "write": ".*", "read": ".*"}


def password_hash(password: str) -> str:
    """Return the salted SHA-256 hash in the layout of users.json."""
    salt = hashlib.sha256(password.encode()).digest()[:4]
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def prepare(data_dir: Path, scenarios: Iterable[dict[str, Any]]) -> None:
    """Write vhosts.json and users.json with all that the scenarios name, besides guest and /."""
    vhosts = {"/"}
    users: dict[str, dict[str, Any]] = {
        "guest": {"password": "guest", "tags": "administrator", "permissions": {}}
    }
    for scenario in scenarios:
        vhosts.update(scenario.get("vhosts", []))
        for user in scenario.get("users", []):
            users[user["name"]] = {
                "password": user["name"] + "-pw",
                "tags": user.get("tags", ""),
                "permissions": {
                    vhost: {"config": regex[0], "write": regex[1], "read": regex[2]}
                    for vhost, regex in user.get("permissions", {}).items()
                },
            }
    users["guest"]["permissions"] = dict.fromkeys(sorted(vhosts), EVERYTHING)
    data_dir.mkdir(parents=True, exist_ok=True)
    _write(data_dir / "vhosts.json", [_vhost_entry(name) for name in sorted(vhosts)])
    _write(data_dir / "users.json", [_user_entry(*item) for item in sorted(users.items())])


def _vhost_entry(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "dir": hashlib.sha1(name.encode()).hexdigest(),
        "tracing": False,
        "tags": [],
        "description": "",
        "cluster_state": {},
    }


def _user_entry(name: str, user: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "password_hash": password_hash(user["password"]),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": user["tags"],
        "permissions": user["permissions"],
    }


def _write(path: Path, content: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def main() -> None:
    """Run as a script."""
    folders = map(Path, sys.argv[2:])
    paths = sorted(path for folder in folders for path in folder.glob("*.json"))
    prepare(Path(sys.argv[1]), [json.loads(path.read_text(encoding="utf-8")) for path in paths])


if __name__ == "__main__":
    main()
