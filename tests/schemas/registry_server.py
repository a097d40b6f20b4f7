"""A schema registry for tests: the part of the Confluent API that writers, readers and people use.

Compatibility is judged by Apache Avro's own checker. Started in a process of its own with ``python -m``.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse


class RegistryServer:
    """Subjects, schemas and compatibility levels in memory."""

    def __init__(self, user_info: str = "", port: int = 0) -> None:
        self.ids: dict[str, int] = {}
        self.subjects: dict[str, list[int]] = {}
        self.levels: dict[str, str] = {}
        self.num_requests = 0
        self.user_info = user_info
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler_of(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RegistryServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def text(self, schema_id: int) -> str | None:
        return next((text for text, known in self.ids.items() if known == schema_id), None)

    def answer(self, method: str, path: list[str], body: dict) -> tuple[int, object]:
        match (method, path):
            case ("GET", ["subjects"]):
                return 200, sorted(self.subjects)
            case ("POST", ["subjects", subject, "versions"]):
                return self.register(subject, canonical(body["schema"]))
            case ("POST", ["subjects", subject]):
                return self.look_up(subject, canonical(body["schema"]))
            case ("GET", ["subjects", subject, "versions", version]):
                return self.version(subject, version)
            case ("GET", ["schemas", "ids", number]):
                text = self.text(int(number))
                return (200, {"schema": text}) if text else (404, {"error_code": 40403, "message": "Schema not found"})
            case ("PUT", ["config", subject]):
                self.levels[subject] = body["compatibility"]
                return 200, {"compatibility": body["compatibility"]}
            case ("GET", ["config", subject]):
                return 200, {"compatibilityLevel": self.levels.get(subject, "BACKWARD")}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def register(self, subject: str, text: str) -> tuple[int, object]:
        held = self.subjects.setdefault(subject, [])
        if self.levels.get(subject) == "FULL_TRANSITIVE" and not all(fits(text, self.text(known)) for known in held):
            return 409, {
                "error_code": 409,
                "message": f"Schema being registered is incompatible with an earlier schema for {subject}",
            }
        schema_id = self.ids.setdefault(text, len(self.ids) + 1)
        if schema_id not in held:
            held.append(schema_id)
        return 200, {"id": schema_id}

    def look_up(self, subject: str, text: str) -> tuple[int, object]:
        if subject not in self.subjects:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        if self.ids.get(text) not in self.subjects[subject]:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        schema_id = self.ids[text]
        return 200, {
            "subject": subject,
            "id": schema_id,
            "version": self.subjects[subject].index(schema_id) + 1,
            "schema": text,
        }

    def version(self, subject: str, version: str) -> tuple[int, object]:
        held = self.subjects.get(subject, [])
        index = len(held) if version == "latest" else int(version)
        if not 1 <= index <= len(held):
            return 404, {"error_code": 40402, "message": "Version not found."}
        return 200, {"subject": subject, "id": held[index - 1], "version": index, "schema": self.text(held[index - 1])}


def canonical(text: str) -> str:
    return json.dumps(json.loads(text), separators=(",", ":"))


def fits(left: str, right: str) -> bool:
    """Whether each of two schemas can read what the other wrote."""
    ways = ((parse(left), parse(right)), (parse(right), parse(left)))
    return all(
        ReaderWriterCompatibilityChecker().get_compatibility(reader, writer).compatibility
        is SchemaCompatibilityType.compatible
        for reader, writer in ways
    )


def handler_of(registry: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            registry.num_requests += 1
            wanted = "Basic " + base64.b64encode(registry.user_info.encode()).decode()
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            if registry.user_info and self.headers.get("Authorization") != wanted:
                status, body = 401, {"error_code": 40101, "message": "Unauthorized"}
            else:
                status, body = registry.answer(self.command, path, json.loads(data or b"{}"))
            out = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        do_GET = do_POST = do_PUT = do

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    server = RegistryServer(port=int(sys.argv[1]))
    server._server.serve_forever()
