"""Liveness of a process: ``/healthz`` for a container engine, ``/metrics`` for Prometheus.

The server answers on its own thread and only when asked for: by ``RODS_METRICS_PORT`` (0 takes a free port, which is
written to ``RODS_METRICS_PORT_FILE``). It listens on loopback unless ``RODS_METRICS_HOST`` says otherwise.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

PORT, HOST, PORT_FILE = "RODS_METRICS_PORT", "RODS_METRICS_HOST", "RODS_METRICS_PORT_FILE"
ANSWER_TIMEOUT_S = 3.0


class HealthServer:
    """Answers for one process.

    Args:
        name: the service.
        host, port: where; port 0 takes a free one.
        checks: by name, a function that gives an empty text when all is well and the complaint otherwise.
        registry: further metrics; those of the process are added.
    """

    def __init__(
        self,
        name: str,
        host: str = "127.0.0.1",
        port: int = 0,
        checks: Mapping[str, Callable[[], str]] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.name = name
        self._checks = dict(checks or {})
        self._registry = registry or CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        Gauge("rods_up", "1 while the process runs.", ["service"], registry=self._registry).labels(name).set(1)
        self._server = ThreadingHTTPServer((host, port), _handler_of(self))
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_address[1]

    def start(self) -> HealthServer:
        """Answer from now on."""
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def health(self) -> tuple[int, dict]:
        """HTTP status and body of ``/healthz``."""
        complaints = {name: text for name, check in self._checks.items() if (text := check())}
        return (503 if complaints else 200), {"service": self.name, "healthy": not complaints, "complaints": complaints}

    def metrics(self) -> bytes:
        """Body of ``/metrics``."""
        return generate_latest(self._registry)


def _handler_of(server: HealthServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/healthz":
                status, body = server.health()
                self._answer(status, "application/json", json.dumps(body).encode())
            elif self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, server.metrics())
            else:
                self._answer(404, "text/plain", b"only /healthz and /metrics\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not logged."""

    return Handler


def serve_if_asked(
    name: str,
    environment: Mapping[str, str],
    checks: Mapping[str, Callable[[], str]] | None = None,
    registry: CollectorRegistry | None = None,
) -> HealthServer | None:
    """Start the server when the environment asks for it.

    Raises:
        ValueError: the port is no number.
        OSError: the port is taken.
    """
    asked = environment.get(PORT, "")
    if not asked:
        return None
    server = HealthServer(name, environment.get(HOST, "127.0.0.1"), int(asked), checks, registry).start()
    if environment.get(PORT_FILE):
        path = Path(environment[PORT_FILE])
        part = path.with_suffix(".part")
        part.write_text(str(server.port))
        part.replace(path)
    return server


def probe(port: int, host: str = "127.0.0.1") -> tuple[bool, str]:
    """Ask ``/healthz``: whether all is well, and the answer or the reason why there is none."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=ANSWER_TIMEOUT_S) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode(errors="replace")
    except OSError as error:
        return False, f"no answer on {host}:{port}: {error}"
