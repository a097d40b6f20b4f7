"""What may stand before the embedded broker: TLS and SASL/PLAIN, or the manners of an older broker.

The gate speaks the two SASL requests itself (Kafka protocol guide, api keys 17 and 36), lets through what every
client asks before (18, ApiVersions) and hands everything else on once the password was right.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

from streams.log.embedded_broker import broker_binary
from streams.processes import Child

HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
UNSUPPORTED_MECHANISM, UNSUPPORTED_VERSION, AUTHENTICATION_FAILED = 33, 35, 58


class Relay:
    """Listens on a loopback port and hands everything on; subclasses say what comes first.

    Args:
        port: where to listen.
        context: TLS, if any.
    """

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.upstream_port = 0
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        asyncio.run_coroutine_threadsafe(serving, self._loop).result(10)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @staticmethod
    async def _end() -> None:
        """Leave no conversation half open."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        back = asyncio.ensure_future(self._pour(upstream_reader, writer))
        try:
            await self._greet(reader, writer, upstream_writer)
            await self._pour(reader, upstream_writer)
        except (ConnectionError, asyncio.IncompleteReadError, PermissionError, ssl.SSLError):
            pass
        finally:
            back.cancel()
            writer.close()
            upstream_writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> None:
        """What is said before everything is handed on."""

    @staticmethod
    async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


class OldApiVersions(Relay):
    """Refuses the third version of ApiVersions, as an older broker does: librdkafka 2.0.2, which Debian's kcat is built
    with, misreads the embedded broker's answer of that version and asks for an older one when refused."""

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> None:
        frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        key, version, correlation = struct.unpack_from(">hhi", frame)
        if key == API_VERSIONS and version >= 3:
            reply(writer, correlation, struct.pack(">hi", UNSUPPORTED_VERSION, 0))
        else:
            upstream.write(struct.pack(">i", len(frame)) + frame)


class Gate(Relay):
    """TLS and SASL/PLAIN.

    Args:
        users: password by user.
        certificate, key: PEM files of the gate.
        port: where to listen.
    """

    def __init__(self, users: dict[str, str], certificate: Path, key: Path, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        super().__init__(port, context)
        self.users = users
        self.num_refused = 0
        self.num_let_in = 0

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> None:
        """Answer requests until the client has shown its password."""
        while True:
            frame = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
            key, version, correlation, name_length = struct.unpack_from(">hhih", frame)
            body = frame[10 + max(0, name_length) :]
            if key == API_VERSIONS:
                upstream.write(struct.pack(">i", len(frame)) + frame)
            elif key == HANDSHAKE:
                known = body[2:] == b"PLAIN"
                reply(writer, correlation, struct.pack(">hih", 0 if known else UNSUPPORTED_MECHANISM, 1, 5) + b"PLAIN")
            elif key == AUTHENTICATE:
                right = self._is_right(body[4:] if version < 2 else body[2:-1])
                reply(writer, correlation, outcome(version, right))
                await writer.drain()
                if not right:
                    self.num_refused += 1
                    raise PermissionError
                self.num_let_in += 1
                return
            else:
                self.num_refused += 1
                raise PermissionError

    def _is_right(self, token: bytes) -> bool:
        """RFC 4616: an optional identity, user and password with zero bytes between them."""
        _, user, password = token.decode().split("\0")
        return self.users.get(user) == password


def reply(writer: asyncio.StreamWriter, correlation: int, body: bytes) -> None:
    writer.write(struct.pack(">ii", 4 + len(body), correlation) + body)


def outcome(version: int, right: bool) -> bytes:
    """Body of a SaslAuthenticate response, header tags included where the version is flexible."""
    error = 0 if right else AUTHENTICATION_FAILED
    if version >= 2:
        return b"\0" + struct.pack(">h", error) + b"\0\1" + struct.pack(">q", 0) + b"\0"
    return struct.pack(">hhi", error, -1, 0) + (struct.pack(">q", 0) if version == 1 else b"")


def broker_behind(port: int, advertised: str, log_path: Path, deadline_s: float = 20.0) -> Child:
    """An embedded broker on a port that tells clients to come by another address."""
    broker = Child(
        "broker",
        [
            str(broker_binary()),
            "broker",
            "--listener-url",
            f"tcp://127.0.0.1:{port}",
            "--advertised-listener-url",
            f"tcp://{advertised}",
            "--storage-engine",
            "memory://rods/",
        ],
        log_path,
    ).start()
    give_up = time.monotonic() + deadline_s
    while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
        broker.require_alive()
        assert time.monotonic() < give_up, broker.last_words()
        time.sleep(0.01)
    return broker
