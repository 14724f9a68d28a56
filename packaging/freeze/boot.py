"""The first Python code of the executable: starts the program that was asked for.

The executable is three programs: which one it is depends on the name it was called by. All it adds
to them is `lavinmq --selftest`, which imports whatever is in it (selftest.py).
"""

import gc
import os
import sys

import finder

AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, Enterprise Linux, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
"""Where systems keep the certificates that they trust; the OpenSSL within was built for one."""


def find_authorities():
    """Tell OpenSSL where certificates are, unless the environment does."""
    if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ:
        return
    for path in AUTHORITIES:
        if os.path.exists(path):
            os.environ["SSL_CERT_FILE"] = path
            return


def run():
    """Run the program that was asked for, and return its exit code."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "lavinmqctl":
        from lavinmq.cli.ctl.__main__ import main
    elif name == "lavinmqperf":
        from lavinmq.cli.perf.__main__ import main
    elif sys.argv[1:] == ["--selftest"]:
        from selftest import main
    else:
        from lavinmq.__main__ import main
    gc.enable()
    return main()


# What is imported stays: looking for garbage in it takes a tenth of the time of a start.
gc.disable()
finder.install()
find_authorities()
sys.exit(run())
