"""Starts the services of docker-compose.yml as plain processes: the same command lines, the embedded broker."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path

import yaml

from schemas import registry as schema_registry
from streams.health import HOST, PORT, PORT_FILE, probe
from streams.log.connection import Connection
from streams.log.embedded_broker import EmbeddedBroker, free_port
from streams.processes import Child

ROOT = Path(__file__).parent.parent.parent
COMPOSE = ROOT / "docker-compose.yml"
SERVICES = ("worker", "archiver", "synthesizer", "metrics", "dashboard")
DEADLINE_S = 60.0
VARIABLE = re.compile(r"\$\{([A-Za-z_]+)(?::?-([^}]*))?\}")


def interpolated(value: object, environment: dict[str, str]) -> object:
    """A parsed compose value with its variables filled in, as Compose does it."""
    if isinstance(value, dict):
        return {key: interpolated(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, environment) for item in value]
    if isinstance(value, str):
        return VARIABLE.sub(lambda m: environment.get(m.group(1)) or m.group(2) or "", value)
    return value


def compose(environment: dict[str, str] | None = None) -> dict:
    """The compose file as parsed, variables filled in."""
    return interpolated(yaml.safe_load(COMPOSE.read_text()), environment or {})


class Stack:
    """Broker, registry and the services, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = EmbeddedBroker(folder / "broker.log")
        self.registry_port, self.dashboard_port = free_port(), free_port()
        self.registry_url = f"http://127.0.0.1:{self.registry_port}"
        self.children: dict[str, Child] = {}
        self.services = compose()["services"]

    @property
    def archive(self) -> Path:
        """Where the archiver writes."""
        return self.folder / "data" / "archive"

    @property
    def connection(self) -> Connection:
        """As the services see the broker."""
        return Connection(
            self.broker.bootstrap_servers, prefix="rods.", num_decision_partitions=4, num_spread_partitions=4
        )

    def start(self) -> Stack:
        """Everything in the order of ``depends_on``."""
        self.broker.start()
        self.children["registry"] = Child(
            "registry",
            [sys.executable, "-m", "tests.schemas.registry_server", str(self.registry_port)],
            self.folder / "registry.log",
        ).start()
        self.await_port("registry", self.registry_port)
        self.launch("init-topics")
        self.children["init-topics"].process.wait(DEADLINE_S)
        assert self.children["init-topics"].exit_code == 0, self.children["init-topics"].last_words()
        for name in SERVICES:
            self.launch(name)
        for name in SERVICES:
            self.await_health(name)
        return self

    def launch(self, name: str, *more: str) -> Child:
        """Start one service with the command line and environment of the compose file, and further arguments."""
        service = self.services[name]
        port_file = self.folder / f"{name}.port"
        port_file.unlink(missing_ok=True)
        env = {key: self.local(str(value)) for key, value in service["environment"].items() if value is not None}
        env |= {
            HOST: "127.0.0.1",
            PORT: "0",
            PORT_FILE: str(port_file),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "cli", *(self.local(part) for part in service["command"]), *more]
        self.children[name] = Child(name, command, self.folder / f"{name}.log", env).start()
        return self.children[name]

    def local(self, text: str) -> str:
        """A value of the compose file for processes on this machine."""
        local = {
            "kafka:19092": self.broker.bootstrap_servers,
            "http://registry:8081": self.registry_url,
            "0.0.0.0": "127.0.0.1",
            "8900": str(self.dashboard_port),
        }
        return re.sub(r"(^|=)/data", rf"\g<1>{self.folder}/data", local.get(text, text))

    def port(self, name: str) -> int:
        """Health port of a service."""
        if name == "dashboard":
            return self.dashboard_port
        self.children[name].await_file(self.folder / f"{name}.port", DEADLINE_S)
        return int((self.folder / f"{name}.port").read_text())

    def await_port(self, name: str, port: int) -> None:
        """Wait until a process listens."""
        give_up_s = time.monotonic() + DEADLINE_S
        while True:
            with socket.socket() as probed:
                if probed.connect_ex(("127.0.0.1", port)) == 0:
                    return
            self.children[name].require_alive()
            assert time.monotonic() < give_up_s, f"{name}: {self.children[name].last_words()}"
            time.sleep(0.02)

    def await_health(self, name: str) -> None:
        """Wait until a service says that it is well."""
        self.await_port(name, port := self.port(name))
        give_up_s = time.monotonic() + DEADLINE_S
        while not (answer := probe(port))[0]:
            self.children[name].require_alive()
            assert time.monotonic() < give_up_s, f"{name}: {answer[1]}\n{self.children[name].last_words()}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Writers first, the archiver behind them, then broker and registry."""
        for name in ("dashboard", "metrics", "synthesizer", "worker", "archiver", "registry"):
            if name in self.children:
                self.children[name].stop(30.0)
        self.broker.stop()


def use_registry(url: str) -> schema_registry.Registry:
    """Let this process write as the services do."""
    os.environ[schema_registry.URL] = url
    return schema_registry.active()
