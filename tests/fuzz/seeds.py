"""Makes the seed corpora from the recordings in tests/fixtures: `python -m tests.fuzz.seeds`.

Few and small: fuzzing starts from what real clients and servers have written.
"""

from __future__ import annotations

import base64
import json
import struct
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lavinmq.auth import passwords
from lavinmq.config.settings import GUEST_HASH
from tests.fuzz.targets import FUZZ
from tests.fuzz.targets.dedup import HEADER, cache
from tests.fuzz.targets.segments import FILES, pack
from tests.fuzz.targets.tokens import SEED
from tests.support import client_frames, mqtt_log
from tests.support import mqtt_bench as bench
from tests.support import mqtt_bytes as mqtt
from tests.support.deliveries import HEARTBEAT_FRAME, METHOD, Delivery, frame, sent
from tests.support.proxy import entry, ssl_entry, v2
from tests.support.replay import enc_table

FIXTURES = FUZZ.parent / "fixtures"
MOST_FILES = 24
MOST_BYTES = 4096
METHOD_FRAME = 1

Corpus = dict[str, bytes]

INI = """\
; a comment
[main]
data_dir = /var/lib/lavinmq
log_level = debug
segment_size = 1048576
[amqp]
bind = 0.0.0.0
port = 5672
heartbeat = 30
[mgmt]
port=15672
[sni:example.com]
tls_cert = /etc/cert.pem
"""


def archived(name: str) -> Corpus:
    """Return the files of this name in the recorded data directories, equal ones once."""
    found: dict[bytes, str] = {}
    for archive in sorted((FIXTURES / "data-dir").glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                if Path(member.name).name == name and member.size <= MOST_BYTES:
                    found.setdefault(_content(tar, member), archive.name.removesuffix(".tar.gz"))
    return {source: content for content, source in found.items()}


def segments() -> Corpus:
    """Return the queues of the recorded directory that are small enough."""
    queues: dict[str, dict[str, bytes]] = {}
    with tarfile.open(FIXTURES / "data-dir" / "rich.tar.gz") as tar:
        for member in tar:
            path = Path(member.name)
            if path.name in FILES and member.size <= MOST_BYTES:
                queues.setdefault(path.parent.name[:8], {})[path.name] = _content(tar, member)
    packed = {
        name: pack([files.get(each, b"") for each in FILES]) for name, files in queues.items()
    }
    return dict(sorted(packed.items())[:MOST_FILES])


def streams() -> Corpus:
    """Return what the clients of some transcripts sent after logging in."""
    found: Corpus = {}
    for path in sorted((FIXTURES / "amqp").glob("*.json")):
        steps = json.loads(path.read_text())["steps"]
        sent = b"".join(bytes.fromhex(step["hex"]) for step in steps if "hex" in step)
        if 0 < len(sent) <= MOST_BYTES:
            found[path.stem] = sent
    step = -(-len(found) // MOST_FILES)
    return dict(list(found.items())[::step])


def methods() -> Corpus:
    """Return one payload of each method that the clients of the transcripts sent."""
    found: Corpus = {}
    for path in sorted((FIXTURES / "amqp").glob("*.json")):
        for step in json.loads(path.read_text())["steps"]:
            for payload in _method_payloads(bytes.fromhex(step.get("hex", ""))):
                name = "-".join(str(int.from_bytes(payload[at : at + 2], "big")) for at in (0, 2))
                if len(payload) > len(found.get(name, b"")):
                    found[name] = payload
    return found


def tables() -> Corpus:
    """Return table contents with every type."""
    numbers = [[kind, kind, 1] for kind in "bBsuIil"]
    values = [
        *numbers,
        ["t", "t", True], ["S", "S", "text"], ["T", "T", 1700000000], ["V", "V", None],
        ["F", "F", [["n", "I", 2]]], ["A", "A", [["I", 1], ["S", "x"], ["F", []]]],
    ]  # fmt: skip
    each = {f"type-{value[1]}": enc_table([value])[4:] for value in values}
    return {"all": enc_table(values)[4:], "empty": b""} | each


def policies() -> Corpus:
    """Return recorded files, and one whose patterns need translation."""
    patterns = (r"^\Qa.b\E\z", r"(?<n>[[:alpha:]\h]+)\k<n>", r"[^]\x{e9}&&]", r"(?!amq\.).*\Z")
    made = [
        {"name": str(number), "pattern": pattern, "definition": {"max-length": number}}
        for number, pattern in enumerate(patterns)
    ]
    return archived("policies.json") | {"patterns": json.dumps(made).encode()}


def documents() -> Corpus:
    """Return documents that are imported in the recordings, and one of what else there can be."""
    path = FIXTURES / "http" / "http-change-definitions.json"
    bodies = [step["req"].get("body") for step in json.loads(path.read_text())["steps"]]
    found = {
        f"recorded-{number}": json.dumps(body).encode()
        for number, body in enumerate(bodies)
        if isinstance(body, dict) and len(body) > 1
    }
    others: dict[str, list[dict[str, object]]] = {
        "vhosts": [{"name": "v", "metadata": {"description": "d", "tags": ["t"]}}],
        "exchanges": [
            {"name": "d", "type": "x-delayed-message", "arguments": {"x-delayed-type": "topic"}},
            {"name": "h", "type": "x-consistent-hash", "arguments": {"x-hash-on": "id"}},
        ],
        "queues": [
            {"name": "amq.gen-1", "durable": False, "auto_delete": True, "arguments": []},
            {"name": "s", "arguments": {"x-queue-type": "stream", "x-max-age": "1D"}},
            {"name": "p", "arguments": {"x-max-priority": 3, "n": [1.5, None, {"t": True}]}},
        ],
        "bindings": [
            {"source": "h", "destination": "p", "destination_type": "queue", "routing_key": "2"},
            {"source": "d", "destination": "h", "destination_type": "exchange"},
            {"source": "amq.match", "destination": "p", "arguments": {"x-match": "any", "a": 1}},
        ],
        "parameters": [
            {"component": "operator_policy", "name": "o",
             "value": {"pattern": "^q", "definition": {"expires": 9}, "apply-to": "queues"}},
            {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 50}},
            {"component": "own", "name": "n", "value": [None, 1.5, "\u00e9"]},
        ],
        "policies": [{"name": "p", "pattern": "x", "definition": {"max-length": 1, "new": 2}}],
        "global_parameters": [{"name": "g", "value": {"a": [1, None]}}],
    }  # fmt: skip
    return found | {"others": json.dumps(others).encode()}


def client() -> Corpus:
    """What a broker tells a client: deliveries, confirms, returns, answers."""
    told = [client_frames.delivery(2, tag, b"body %d" % tag) for tag in range(1, 6)]
    confirms = [client_frames.confirm(1, 3, True), client_frames.refusal(1, 5)]
    rest = [client_frames.method(2, "basic.consume-ok", "c"), HEARTBEAT_FRAME]
    large = client_frames.delivery(2, 1, bytes(9000), chunk=4088)
    closing = client_frames.method(0, "connection.close", 320, "bye", 0, 0)
    return {
        "deliveries": b"\x80" + b"".join(told),
        "confirms": b"\x40" + b"".join(confirms),
        "all": b"\x20" + b"".join([*rest, *told[:2], *confirms, *told[2:], closing]),
        "large": b"\xa0" + large,
    }


def deliveries() -> Corpus:
    """Return what consumers of streams receive: properties, bodies of many frames, other frames."""
    cancel = frame(METHOD, b"\0\x3c\0\x1e\x01c\x01")
    messages = [
        Delivery(1, b"below", b"x", b"k"),
        Delivery(2, b"first", b"amq.topic", b"a.b", {"a": [1, {"b": "c"}], "d": 1.5}, 1 << 40),
        Delivery(3, flags=0x9000, before=b"\x04text", behind=b"\x02"),
        Delivery(5, bytes(300), flags=0x0040, behind=struct.pack(">q", 7)),
    ]
    made = {
        "usual": sent(messages),
        "parts": sent(messages, chunk=50) + HEARTBEAT_FRAME + cancel,
        "many": sent([Delivery(offset) for offset in range(1, 20)]),
        "end": sent([*messages, Delivery(1 << 40)]),
        "cancel": cancel + sent(messages[:2]),
    }
    return {name: b"\x80" + data for name, data in made.items()}


def keys() -> Corpus:
    """Return files of keys, of which one was closed in order; of the format before, too."""
    found: Corpus = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, count in (("one", 1), ("some", 9), ("many", 60), ("closed", 3)):
            path = Path(directory, name)
            made = cache(path)
            for number in range(count):
                made.remember(b"\x16" + HEADER + b"I" + struct.pack(">I", number), 0)
            made.flush()
            if name == "closed":
                made.close()
            found[name] = now = path.read_bytes()
            found[f"old-{name}"] = struct.pack("<II", 1, name == "closed") + now[8:]
    return found


def retained() -> Corpus:
    """Return entries of retained messages, and whole files of them."""
    puts = [
        struct.pack("<BBHIqq", 1, qos, len(topic), len(properties), 1, expires)
        + topic + properties + payload
        for topic, payload, qos, properties, expires in (
            (b"a/b", b"payload", 1, b"", 0), (b"a/b", b"again", 2, b"\x03\0\1x", 1 << 60),
            (b"old", b"", 0, b"", 1), (b"$SYS/up", b"1", 0, b"", 0), (b"//", bytes(300), 0, b"", 0),
        )
    ]  # fmt: skip
    removed = struct.pack("<BBH", 2, 0, 3) + b"a/b"
    floor = struct.pack("<II", 255, 1)
    imported = struct.pack("<QqQ", 3, 1, 1)
    made = {"puts": puts, "removed": [*puts, removed], "other": [floor, imported, *puts, b"\7new"]}
    whole = {name: b"\1" + mqtt_log.joined(bodies) for name, bodies in made.items()}
    return whole | {"file": b"\0" + mqtt_log.file_of(mqtt_log.RETAINED, made["removed"])}


def sessions() -> Corpus:
    """Return blocks of a log of sessions, and a whole file of them."""
    made = struct.pack("<BQH", 1, 1, 6) + b"client"
    other = struct.pack("<BQH", 1, 2, 1) + b"x"
    times = struct.pack("<BQIq", 3, 1, 3600, 1 << 40)
    fact = struct.pack("<BQHI", 4, 1, 4, 5) + b"will" + b"value"
    no_fact = struct.pack("<BQH", 5, 1, 4) + b"will"
    packets = b"".join(struct.pack("<BQBH", 6, 1, change, 7) for change in (1, 2, 4, 5))
    sent = struct.pack("<BQHII", 7, 1, 9, 1, 4)
    ended = struct.pack("<BQ", 2, 1)
    bodies = [made + times, fact + packets[:12], other + sent, no_fact + packets, ended]
    place = struct.pack("<BQII", 11, 77, 1, 500)
    turn = struct.pack("<BQ", 12, 8) + place + place.replace(b"M", b"N")
    came = struct.pack("<BQHHII", 10, 1, 20, 3, 8, 3)
    safe = struct.pack("<BQ", 13, 8)
    return {
        "turns": b"\1" + mqtt_log.joined([made, turn + came, safe + turn + came, came]),
        "blocks": b"\1" + mqtt_log.joined(bodies),
        "some": b"\1" + mqtt_log.joined(bodies[:3]),
        "file": b"\0" + mqtt_log.file_of(mqtt_log.SESSIONS, bodies),
    }


def hashes() -> Corpus:
    """Return one hash of each kind, in the places that their algorithms have."""
    texts = [
        passwords.DECOYS["scrypt"], GUEST_HASH, "A" * 92, passwords.DECOYS["bcrypt"],
        "$1$" + "A" * 24, "A" * 24,
    ]  # fmt: skip
    return {str(index): bytes([index]) + text.encode() for index, text in enumerate(texts)}


def claims() -> Corpus:
    """Return claims with scopes in every place for them."""
    scopes = ["broker.tag:administrator", "broker.read:%2F/q*", "broker.write:*/a%2Fb/key"]
    made = {
        "text": {"sub": "anna", "scope": " ".join(scopes)},
        "array": {"client_id": "anna", "more": scopes},
        "roles": {"sub": "anna", "resource_access": {"broker": {"roles": scopes}}},
        "object": {"sub": "anna", "more": {"broker": scopes, "other": "x"}},
    }
    return {name: json.dumps(each).encode() for name, each in made.items()}


def tokens() -> Corpus:
    """Return signed tokens, and one for each other algorithm that is none."""
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    content = {"iss": "https://issuer.example", "sub": "anna", "exp": 2**33}
    found = {"EdDSA": jwt.encode(content, key, "EdDSA", {"kid": "k"}).encode()}
    _, payload, signature = found["EdDSA"].split(b".")
    for alg in ("RS256", "PS256", "ES256", "HS256", "none"):
        head = json.dumps({"alg": alg, "kid": "k"}).encode()
        found[alg] = base64.urlsafe_b64encode(head).rstrip(b"=") + b"." + payload + b"." + signature
    return found


def proxy_headers() -> Corpus:
    """Return headers of both versions, with a client behind them."""
    ipv4, ipv6 = bytes(range(12)), bytes(range(36))
    made = {
        "tcp4": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "tcp6": b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n",
        "unknown": b"PROXY UNKNOWN ffff::1\r\n",
        "v2-ipv4": v2(ipv4 + ssl_entry() + entry(4, b"")),
        "v2-ipv6": v2(ipv6, family=0x21),
        "v2-unix": v2(bytes(216), family=0x31),
        "v2-local": v2(b"", command=0x20, family=0),
        "none": b"",
    }
    return {name: header + b"AMQP\x00\x00\x09\x01" for name, header in made.items()}


def mqtt_packets() -> Corpus:
    """Return each packet that Python reads, in each version."""
    made: Corpus = {}
    for level, name in ((mqtt.V31, "31"), (mqtt.V311, "311"), (mqtt.V5, "5")):
        with_will = mqtt.connect(level, "client", will=("a/b", b"gone", 1, True), clean=False)
        wishes = ("a/+/b", 1), ("$share/group/#", 2)
        packets = {
            "connect": with_will,
            "subscribe": mqtt.subscribe(level, 10, *wishes),
            "unsubscribe": mqtt.unsubscribe(level, 11, "a/+/b", "x"),
            "disconnect": mqtt.packet(14, b""),
        }
        for what, packet in packets.items():
            made[f"{what}-{name}"] = bytes([level - mqtt.V31, packet[0]]) + packet[2:]
    asked = mqtt.block(b"\x11\0\0\0\x0a", b"\x21\0\x14", b"\x26" + mqtt.text("k") + mqtt.text("v"))
    whole = mqtt.connect(mqtt.V5, "client", properties=asked)
    made["properties"] = b"\x02" + whole[:1] + whole[2:]
    leaving = b"\x04" + mqtt.block(b"\x11\0\0\0\x09", b"\x1f" + mqtt.text("bye"))
    made["leaving"] = b"\x02\xe0" + leaving
    made["auth"] = b"\x02\xf0\x18" + mqtt.block(b"\x15" + mqtt.text("M"), b"\x16" + mqtt.text("d"))
    return made


def mqtt_conversations() -> Corpus:
    """Return what clients of each version say in an open session."""
    made: Corpus = {}
    for version in range(3):
        props = b"" if version == 2 else None
        said = [
            bench.publish(b"t/a", b"x", properties=props),
            bench.publish(b"t/b", b"y" * 300, qos=1, id=3, properties=props),
            bench.publish(b"s/c", b"z", qos=2, id=4, retain=True, properties=props),
            bench.publish(b"s/c", b"z", qos=2, id=4, dup=True, properties=props),
            *(bench.ack(kind, id) for kind in (4, 5, 6, 7) for id in (1, 2, 3, 4)),
            b"\xc0\0",
            b"\x82\x05\0\1\0\1a\0",
        ]
        for flags in (0, 4, 8):
            number = next(
                n for n in range(flags, flags + 4) if n % 3 == version and n & 12 == flags
            )
            made[f"talk-{version + 3}-{flags}"] = bytes([number]) + b"".join(said)
    user = b"\x26" + mqtt.text("k") + mqtt.text("v")
    block = b"\x01\1\x02\0\0\0\5\x03\0\1c\x08\0\1r\x09\0\1d" + user
    with_alias = bench.publish(b"t/a", b"1", properties=block + b"\x23\0\1")
    made["properties"] = b"\x02" + with_alias + bench.publish(b"", b"2", properties=b"\x23\0\1")
    return made


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""


def _method_payloads(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 8 <= len(data) and data[:4] != b"AMQP":
        end = at + 7 + int.from_bytes(data[at + 3 : at + 7], "big")
        if data[at] == METHOD_FRAME and end - at <= MOST_BYTES:
            found.append(data[at + 7 : end])
        at = end + 1
    return found


MAKERS: dict[str, Callable[[], Corpus]] = {
    "dedup": keys,
    "client": client,
    "deliveries": deliveries,
    "definitions": lambda: archived("definitions.amqp"),
    "documents": documents,
    "fieldtable": tables,
    "frames": streams,
    "ini": lambda: {"usual": INI.encode()},
    "methods": methods,
    "mqtt": mqtt_packets,
    "mqtt_packets": mqtt_conversations,
    "passwords": hashes,
    "policies": policies,
    "scopes": claims,
    "proxy": proxy_headers,
    "retained": retained,
    "scan": lambda: dict(list(segments().items())[:10]),
    "segments": segments,
    "sessions": sessions,
    "tokens": tokens,
    "users": lambda: archived("users.json"),
    "vhosts": lambda: archived("vhosts.json"),
}


def main() -> None:
    """Write all corpora again."""
    for name, make in MAKERS.items():
        folder = FUZZ / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file, content in make().items():
            (folder / file).write_bytes(content)


if __name__ == "__main__":
    main()
