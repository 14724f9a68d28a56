"""The port for metrics of a node that follows, or waits: no broker runs there that could serve it.

Numbers of the process and of the cluster for Prometheus, the picture of the cluster, and probes for
whoever starts and stops nodes. The broker takes the port over when the node leads, as it does with
the control socket (`control.py`), which is served by the same means.
Source: docs/monitoring.md.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from lavinmq.cluster.host import NodeHost
from lavinmq.http import probes
from lavinmq.http.access.origin import Origin
from lavinmq.http.errors import ApiError
from lavinmq.http.handler import Handler, NotFound
from lavinmq.http.health import Alive
from lavinmq.http.listeners import for_control, for_metrics
from lavinmq.http.metrics import cluster, integrity, process
from lavinmq.http.metrics.handlers import SCRAPE_DURATION, SCRAPE_MEM, exposition
from lavinmq.http.server import GuardedApplication, HttpListener, HttpService
from lavinmq.listeners.tls import Contexts
from lavinmq.process import log
from lavinmq.process.portions import SharedPortion
from lavinmq.stats.system import System, descriptors_used

if TYPE_CHECKING:
    from lavinmq.config.values import Config
    from lavinmq.http.metrics.exposition import Exposition
    from lavinmq.stats.histogram import Values

NOT_READY: Final = "not serving clients"
_log = log.get("lmq.http.server")


class Probes:
    """Listens from `start` to `close`, where the configuration says so.

    Args: picture: makes what `/api/cluster` shows; control: what the control socket serves;
        sync_times: how long this node's syncs took, None: it follows nobody.
    """

    def __init__(
        self, config: Config, events: asyncio.AbstractEventLoop,
        picture: Callable[[], dict[str, Any]], control: GuardedApplication,
        sync_times: Callable[[], Values | None],
    ) -> None:  # fmt: skip
        self._config = config
        self._events = events
        self._picture = picture
        self._control = control
        self._sync_times = sync_times
        self._listeners: list[HttpListener] = []

    def start(self) -> None:
        """Listen. Raises: OSError naming the address; then nothing is bound."""
        config, events = self._config, self._events
        host = NodeHost(events, config, Contexts(config), SharedPortion(events.call_soon))
        name = ""
        try:
            if config.metrics_http_port >= 0:
                metrics = _application(config, self._picture, self._sync_times)
                self._listeners.append(for_metrics(host, HttpService(config, events, metrics)))
            if config.control_unix_path:
                control = HttpService(config, events, self._control)
                self._listeners.append(for_control(host, control, config.control_unix_path))
            for each in self._listeners:
                name = f"cannot listen on {each.name}: "
                each.start()
                _log.info("Listening for HTTP on %s", each.name)
        except OSError as error:
            self.close()
            raise OSError(error.errno, f"{name}{error.strerror}") from error

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        while self._listeners:
            self._listeners.pop().close()


class _Ready(Alive):
    """`/readyz`, as a broker has it."""

    def get(self) -> None:
        """Say whether clients are served through this node."""
        is_ready = self.application.settings["cluster"]()["ready"]
        self._say(200 if is_ready else 503, "ok" if is_ready else NOT_READY)

    head = get


class _Metrics(Handler):
    """`/metrics`: the process, and the cluster as this node knows it."""

    async def get(self) -> None:
        """Send all of it."""
        query = parse_qs(self.request.query, keep_blank_values=True, errors="surrogateescape")
        try:
            out = exposition(query, self.request.headers.get("Accept", ""))
        except ApiError as error:
            self.finish_error(error)
            return
        began = time.perf_counter()
        self.set_header("Content-Type", out.content_type)
        self.set_header("Vary", "Accept")
        n_descriptors = await descriptors_used()
        text = "".join(self.lines(out, n_descriptors))
        text += out.alone(SCRAPE_DURATION, round(time.perf_counter() - began, 6))
        text += out.alone(SCRAPE_MEM, len(text)) + out.end()
        self.finish("" if self.request.method == "HEAD" else text)

    head = get

    def lines(self, out: Exposition, n_descriptors: int) -> list[str]:
        """What is behind the scrape itself."""
        settings = self.application.settings
        times: Values | None = settings["sync_times"]()
        return [
            *process.identity(out, socket.gethostname()),
            *process.machine(out, n_descriptors, settings["system"]),
            *process.usage(out, settings["started_at"]),
            *process.runtime(out),
            *([] if times is None else [out.histogram(process.SYNCS, times)]),
            *cluster.figures(out, picture := settings["cluster"]()),
            *integrity.figures(out, picture["integrity"]),
        ]


class _Detailed(_Metrics):
    """`/metrics/detailed`: nothing but the scrape, as there are no queues or clients here."""

    def lines(self, out: Exposition, n_descriptors: int) -> list[str]:
        """None."""
        return []


def _application(
    config: Config, picture: Callable[[], dict[str, Any]], sync_times: Callable[[], Values | None]
) -> GuardedApplication:
    return GuardedApplication(
        [
            (r"/healthz", Alive),
            (r"/readyz", _Ready),
            (r"/metrics/?", _Metrics),
            (r"/metrics/detailed/?", _Detailed),
            *probes.ROUTES,
        ],
        default_handler_class=NotFound,
        log_function=log_request,
        config=config,
        names=(socket.gethostname().lower(),),
        origin=Origin.METRICS,
        cluster=picture,
        sync_times=sync_times,
        system=System(config.data_dir),
        started_at=time.monotonic(),
    )


def log_request(handler: Any) -> None:
    """Note a request and its answer, for who looks closely."""
    request = handler.request
    _log.debug("%s %s %d", request.method, request.uri, handler.get_status())
