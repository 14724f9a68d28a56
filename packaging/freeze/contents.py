"""What Python the executable holds: where reading imports begins, and what is left out.

What is left out must be something that the broker and its tools do without; the self-test imports
all that is there and fails when one of our modules misses another.
"""

ROOTS = [
    "boot", "selftest", "assets", "prepared", "later", "lavinmq.*", "encodings.*",
    # Imported where no reader of imports sees it: by C, by Rust, by name.
    "uvloop", "uvloop._noop", "uvloop.includes", "orjson", "json", "uuid", "enum", "dataclasses",
    "datetime", "zoneinfo", "sysconfig", "numbers", "_strptime", "stringprep", "jwt",
    "concurrent.futures.thread", "tornado.simple_httpclient", "tornado.websocket",
    "importlib.resources", "importlib.metadata", "traceback", "linecache", "tempfile",
]  # fmt: skip
EXCLUDED = [
    # These run in programs of others, with libraries that are not in here.
    "lavinmq.client.kombu", "lavinmq.pytest_plugin", "lavinmq.spark", "lavinmq.pipeline", "pytest",
    "cryptography",
    # The standard library's tools and tests, and what is of other systems.
    "test", "unittest", "doctest", "pdb", "pydoc", "pydoc_data", "tkinter", "idlelib", "lib2to3",
    "turtle", "turtledemo", "distutils", "ensurepip", "venv", "curses", "readline", "rlcompleter",
    "sqlite3", "dbm", "xml", "xmlrpc", "wsgiref", "antigravity", "this", "code", "codeop", "cmd",
    "bz2", "lzma", "_aix_support", "_ios_support", "_osx_support", "_pydatetime", "_pydecimal",
    "_pyio",
    "multiprocessing.managers", "multiprocessing.pool", "multiprocessing.dummy",
    "multiprocessing.shared_memory", "multiprocessing.sharedctypes", "multiprocessing.synchronize",
    "multiprocessing.queues", "multiprocessing.heap", "multiprocessing.resource_tracker",
    "multiprocessing.popen_spawn_win32", "multiprocessing.popen_forkserver",
    "multiprocessing.forkserver", "multiprocessing.popen_spawn_posix", "multiprocessing.spawn",
    "multiprocessing.connection", "concurrent.futures.process",
    "asyncio.windows_events", "asyncio.windows_utils", "encodings.mbcs", "encodings.oem",
    "tornado.test", "tornado.testing", "tornado.autoreload", "tornado.curl_httpclient",
    "tornado.auth", "tornado.wsgi", "tornado.platform.caresresolver", "tornado.platform.twisted",
]  # fmt: skip

DOCUMENTED = ["lavinmq.http"]
"""Packages whose functions keep their docstrings: the API describes itself by them."""

WITH_DATA = ["lavinmq"]
"""Packages whose other files can be read by `importlib.resources`."""

PREPARED = [
    "lavinmq.__main__", "lavinmq.server", "lavinmq.http.listeners", "lavinmq.cli.ctl.__main__",
]  # fmt: skip
"""What these compile when they are imported is compiled beforehand (prepared.py)."""

APPENDED = {
    "collections": "from prepared import evaluate as eval",
    "dataclasses": "from prepared import run as exec",
    "re._compiler": "import prepared; compile = prepared.compiler(compile)",
}
"""Lines that modules of others end with in the executable."""

POSTPONED = {
    "inspect": ["ast", "linecache", "tokenize"],
    "logging.handlers": ["pickle"],
    "subprocess": ["locale"],
    "tornado.escape": ["html"],
    "tornado.httputil": ["calendar"],
    "tornado.locale": ["csv", "gettext", "glob"],
    "tornado.process": ["multiprocessing"],
    "tornado.web": ["gzip", "mimetypes"],
    "traceback": ["linecache", "textwrap"],
    "urllib.parse": ["ipaddress"],
}
"""Imports of modules of others that wait until something of them is used (later.py)."""
