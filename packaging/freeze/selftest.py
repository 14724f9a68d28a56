"""`lavinmq --selftest`: imports every module of the executable and uses what tends to be missing.

Libraries in C and Rust import modules of Python where no reader of imports sees it, and some end
the process when they do not find them. In an empty root it proves that nothing outside is needed.
"""

import sys
import tempfile
import traceback


def modules():
    """Return the names of all modules that are in the executable."""
    import _imp

    names = {*sys.builtin_module_names, *_imp._frozen_module_names()}
    # `__main__` runs already, and the interpreter has a few whose names begin in the same way that
    # only greet.
    return sorted(name for name in names if not name.startswith("__"))


def check_imports():
    """Import all of them."""
    # Its half in C, when that is imported first, leaves the other half without what it has.
    import asyncio  # noqa: F401
    import importlib

    for name in modules():
        try:
            importlib.import_module(name)
        except ImportError as error:
            if not (error.name and is_optional(name, error.name)):
                raise
    return f"{len(sys.modules)} modules"


def is_optional(importer, missing):
    """Whether a module of others may miss another one: it was left out of purpose."""
    return not importer.startswith("lavinmq") and not missing.startswith("lavinmq")


def check_json():
    """Let orjson meet every type that it looks up in Python."""
    import dataclasses
    import datetime
    import enum
    import json
    import uuid
    import zoneinfo

    import orjson

    point = dataclasses.make_dataclass("Point", ["x"])
    color = enum.Enum("Color", {"RED": 1})
    value = {
        "text": "ø", "number": 1.5, "none": None, "enum": color.RED, "dataclass": point(1),
        "uuid": uuid.UUID(int=1), "time": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    }  # fmt: skip
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
    assert json.loads(text)["dataclass"] == {"x": 1}, text
    assert orjson.loads(text)["time"] == "2024-01-02T00:00:00+00:00"
    try:
        orjson.loads(b"{")
    except json.JSONDecodeError:
        pass
    else:
        raise AssertionError("a wrong document was read")
    assert zoneinfo.TZPATH
    return orjson.__version__


def check_codecs():
    """Use text encodings and what is imported for them."""
    import time
    from decimal import Decimal

    assert "bücher".encode("idna") == b"xn--bcher-kva"
    for name in ("utf-8", "latin-1", "ascii", "utf-16", "punycode", "unicode_escape"):
        assert "lav".encode(name).decode(name) == "lav"
    assert time.strptime("2024-01-02", "%Y-%m-%d").tm_yday == 2
    assert Decimal("0.1") * 3 == Decimal("0.3")
    return ""


def check_loop():
    """Run the event loop: a socket, a name, a thread, a child's end."""
    import asyncio
    import socket

    import uvloop

    async def talk():
        async def answer(reader, writer):
            writer.write(await reader.readexactly(4))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"ping")
        assert await reader.read() == b"ping"
        writer.close()
        server.close()
        assert await asyncio.to_thread(socket.getaddrinfo, "127.0.0.1", 1)
        return await asyncio.get_running_loop().getaddrinfo("::1", 1)

    assert uvloop.run(talk())
    return uvloop.__version__


def check_tls():
    """Make contexts, hash, and check a password and a signature."""
    import hashlib
    import os
    import ssl

    import bcrypt

    trusted = ssl.create_default_context().cert_store_stats()["x509_ca"]
    assert ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert hashlib.scrypt(b"a", salt=b"b", n=2, r=1, p=1, dklen=8)
    assert hashlib.new("md5", b"", usedforsecurity=False).hexdigest().startswith("d41d8c")
    # The example of crypt(5) for `U*U`, as every implementation answers it.
    known = b"$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
    assert bcrypt.checkpw(b"U*U", known)
    assert not bcrypt.checkpw(b"U*V", known)
    check_signature()
    return f"{ssl.OPENSSL_VERSION}, {trusted} authorities from {os.environ.get('SSL_CERT_FILE')}"


def check_signature():
    """Check a signature of Ed25519. Source: RFC 8032, section 7.1, test 2."""
    import base64

    from lavinmq.auth import signatures

    def text(digits):
        return base64.urlsafe_b64encode(bytes.fromhex(digits)).rstrip(b"=").decode()

    x = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    key = signatures.public_key({"kty": "OKP", "crv": "Ed25519", "x": text(x)})
    assert key.verify(signature, b"\x72", digest=False)
    assert not key.verify(signature, b"\x73", digest=False)


def check_broker():
    """Start a broker, administer it over HTTP, and send messages through it."""
    import contextlib
    import importlib.resources
    import io
    import os

    import lavinmq
    from lavinmq.cli.ctl import __main__ as ctl
    from lavinmq.cli.perf import __main__ as perf

    with tempfile.TemporaryDirectory() as directory:
        control = os.path.join(directory, "control.sock")
        listed = io.StringIO()
        with lavinmq.run(control_unix_path=control) as broker, contextlib.redirect_stdout(listed):
            tool = ["--control-unix-path", control]
            assert ctl.main(["create_queue", "greetings", *tool]) == 0
            assert ctl.main(["list_queues", "name", "messages", *tool]) == 0
            load = ["--uri", broker.url, "--queue", "load", "-C", "100", "-D", "100"]
            assert perf.main(["throughput", *load]) == 0
    assert importlib.resources.files("lavinmq").joinpath("py.typed").is_file()
    assert "greetings" in listed.getvalue(), listed.getvalue()
    return lavinmq.__version__


def check_pages():
    """See that the management pages are there, each with what it is made of."""
    from lavinmq.http.ui import files, places

    found = files.Files()
    missing = {f"pages/{name}.html" for name in places.PLACES} - found.fragments.keys()
    assert not missing, missing
    assert "vendor/uplot.js" in found.assets
    assert all(each in found.assets for needed in found.modules.values() for each in needed)
    return f"{len(found.fragments)} fragments, {len(found.assets)} files"


def check_prepared():
    """See that what was compiled beforehand has been used by now: it is what imports ask for."""
    import prepared

    assert not prepared.CODE, [*prepared.CODE]
    assert not prepared.PATTERNS, [*prepared.PATTERNS]
    return ""


CHECKS = (
    check_imports,
    check_json,
    check_codecs,
    check_loop,
    check_tls,
    check_broker,
    check_pages,
    check_prepared,
)


def main():
    """Run all checks and say how each went. Returns: 0 when all is well, else 1."""
    failed = 0
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        try:
            print(f"{name}: ok {check()}".rstrip(), flush=True)
        except BaseException:  # noqa: BLE001 - whatever it is, the next check shall run
            failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0
