"""A broker inside another program: `lavinmq.run()` starts one in a thread with a loop of its own.

Owns that thread, the temporary data directory and what the program sees of the broker, `Broker`.
It leaves the program alone: no signal handlers, no change of logging, of limits or of the event
loop that others get. Starting and stopping are those of `server.py`. See docs/embedding.md.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import quote

from lavinmq.config.settings import GUEST_HASH
from lavinmq.config.values import Config, from_keywords
from lavinmq.process import log
from lavinmq.server import Server, opened

T = TypeVar("T")
STOP_TIMEOUT_S: Final = 1.0
WORK_TIMEOUT_S: Final = 30.0
EXIT_TIMEOUT_S: Final = 0.1
"""At the end of the program few clients are left that could answer."""
EXIT_DEADLINE_S: Final = 10.0
PROCESS_SETTINGS: Final = ("log_level", "log_file", "log_format", "pidfile")
"""What belongs to the program and not to one of its parts."""
_log = log.get("lmq.embedded")


class BrokerError(Exception):
    """A broker ended by itself or did not stop in order; the text is one line and says why."""


def run(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    **settings: str | int | os.PathLike[str] | None,
) -> Broker:
    """Start a broker in this process and return it when it listens.

    Args:
        data_dir: where it stores; None: a new temporary directory, removed when it stops.
        settings: any setting, by its key in [main] or by section and key (`segment_size=65536`,
            `amqp_port=5672`). Without `amqp_port`, a free port is taken; without `data_dir`, `sync`
            is off, as nothing outlives the broker.
    Raises: TypeError for an unknown setting, ConfigError for an unusable value, before anything is
        done; DataDirError for a directory that is locked or of another format; DefinitionsError for
        an unreadable file in it; OSError, for example EADDRINUSE.
    """
    for name in PROCESS_SETTINGS:
        if name in settings:
            raise TypeError(f"{name!r} is not for a broker inside another program")
    chosen: dict[str, object] = {
        "amqp_port": 0,
        "amqp_tls_port": 0,
        "mgmt_port": -1,
        "mgmt_tls_port": -1,
        "metrics_http_port": -1,
        "mqtt_port": -1,
        "mqtt_tls_port": -1,
        "control_unix_path": "",
        "sync": data_dir is not None,
        **settings,
    }
    if data_dir is not None:
        chosen["data_dir"] = data_dir
    config = from_keywords(chosen)
    for warning in config.warnings:
        _log.warning("%s", warning)
    temporary = tempfile.mkdtemp(prefix="lavinmq-") if data_dir is None else None
    config.data_dir = temporary or os.path.abspath(config.data_dir)
    return Broker(config, temporary)


class Broker:
    """A running broker in a thread of this process; made by `run`.

    `with` and `async with` stop it at the end. A program that ends without stopping it stops it on
    its way out. A forked child has no part in it.
    """

    host: str
    """The address it listens on."""
    port: int
    """The TCP port it listens on; -1 when it has none."""
    data_dir: str
    """The absolute path of the data directory."""

    def __init__(self, config: Config, temporary: str | None) -> None:
        self.host = config.amqp_bind
        self.data_dir = config.data_dir
        self._config = config
        self._temporary = temporary
        self._pid = os.getpid()
        self._server: Server
        self._failure = ""
        self._stopping = threading.Lock()
        ready: Future[int] = Future()
        # A daemon, because the interpreter waits for all others before it calls what is at exit.
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="lavinmq", daemon=True
        )
        self._thread.start()
        atexit.register(self._stop_at_exit)
        try:
            self.port = ready.result()
        except Exception:
            self._thread.join()
            self._clean_up()
            raise

    @property
    def url(self) -> str:
        """The URL of the virtual host `/` for the default user.

        Without name and password when only `default_password_hash` was given: they are not known.
        Raises: ValueError when it listens on no TCP port.
        """
        return self._url_of("/")

    @property
    def http_url(self) -> str:
        """The URL of the HTTP API for the default user, without a path: paths begin with `/api`.

        Raises: ValueError when nothing listens for it: `run(mgmt_port=0)` has it on a free port.
        """
        port = self._server.http_port
        if port < 0:
            raise ValueError("the broker has no HTTP API: start it with mgmt_port=0")
        return f"http://{self._login}{_shown(self._config.http_bind)}:{port}"

    def _url_of(self, vhost: str) -> str:
        if self.port < 0:
            raise ValueError("the broker listens on no TCP port")
        return f"amqp://{self._login}{_shown(self.host)}:{self.port}/{quote(vhost, safe='')}"

    @property
    def _login(self) -> str:
        """Name and password as they stand in a URL, empty if the password is not known."""
        password = self._config.default_password_plain
        if password is None and self._config.default_password_hash == GUEST_HASH:
            password = "guest"
        user = quote(self._config.default_user, safe="")
        return "" if password is None else f"{user}:{quote(password, safe='')}@"

    @contextmanager
    def vhost(self, name: str = "") -> Iterator[str]:
        """A virtual host for the time of a `with`; gives its URL for the default user.

        At the end it goes with all that is in it, and who is still connected to it is disconnected.
        Args: name: of one that is not there yet; default: a name that nobody else has.
        Raises: ValueError for a name that is there, or cannot be one; BrokerError.
        """
        name = name or f"test-{secrets.token_hex(8)}"
        vhosts = self._server.broker.vhosts
        if not self._within(vhosts.create(name)):
            raise ValueError(f"there is a virtual host {name!r} already")
        try:
            yield self._url_of(name)
        finally:
            if self.is_running:
                self._within(vhosts.delete(name))

    def reset(self) -> None:
        """Make it as it was when its data directory was new: queues, messages, users and all else
        that was declared are gone, and all clients are disconnected. The ports stay.

        Raises: BrokerError.
        """
        self._within(self._server.broker.reset())

    def _within(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done in the broker's thread. Raises: BrokerError if it is not running."""
        try:
            if not self.is_running:
                raise RuntimeError
            done = asyncio.run_coroutine_threadsafe(work, self._server.events)
        except RuntimeError:  # its loop is closed
            work.close()
            raise BrokerError("the broker is not running") from None
        try:
            return done.result(WORK_TIMEOUT_S)
        except TimeoutError:
            raise BrokerError(f"the broker does not answer within {WORK_TIMEOUT_S} s") from None

    @property
    def is_running(self) -> bool:
        """Whether it has neither been stopped nor ended by itself, as it does when a sync fails."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop it in order and wait for the end. A second call does nothing.

        Args: timeout_s: how long clients may take to answer that they are disconnected.
        Raises: BrokerError, once, when it had ended by itself, or could not write everything out.
        """
        self._end(timeout_s, None)
        failure, self._failure = self._failure, ""
        if failure:
            raise BrokerError(failure)

    def _stop_at_exit(self) -> None:
        """A failure has been logged; nobody is left to tell."""
        self._end(EXIT_TIMEOUT_S, EXIT_DEADLINE_S)

    def _end(self, timeout_s: float, deadline_s: float | None) -> None:
        if os.getpid() != self._pid:
            return
        with self._stopping:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                self._server.events.call_soon_threadsafe(self._server.stop, timeout_s)
            self._thread.join(deadline_s)
        self._clean_up()

    def _clean_up(self) -> None:
        atexit.unregister(self._stop_at_exit)
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _run(self, ready: Future[int]) -> None:
        """The thread: one broker from start to end."""
        events = _new_event_loop()
        try:
            with opened(self._config, events, wait=False) as self._server:
                self._server.start()
                ready.set_result(self._server.port)
                events.run_forever()
            self._failure = self._server.failure
        except Exception as error:
            if ready.done():
                self._failure = f"{type(error).__name__}: {error}"
                raise
            ready.set_exception(error)  # for the thread that called `run`
        finally:
            _end_tasks(events)
            events.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # In another thread, so that clients of this loop can answer meanwhile.
        await asyncio.to_thread(self.stop)

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"<lavinmq.Broker {self.host}:{self.port} {self.data_dir!r} {state}>"


def _end_tasks(events: asyncio.AbstractEventLoop) -> None:
    """Requests whose connections were closed just now: of what is left pending the program would be
    told."""
    left = asyncio.all_tasks(events)
    for task in left:
        task.cancel()
    if left:
        events.run_until_complete(asyncio.wait(left, timeout=STOP_TIMEOUT_S))


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, if it is there; the policy of the program is left alone."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
