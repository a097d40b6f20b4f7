"""``rods dashboard``: a web page of one run, from its archive while it is written or from the topics themselves.

Everything is drawn by the server with the charts of the report; the page asks for fresh panels every two seconds. It
loads nothing from elsewhere, changes nothing, and listens on loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web

from analysis.index import LogIndex, RunIndex
from analysis.lineage_chart import lineage_html
from analysis.series import busiest_task
from analysis.summary import summary_of
from analysis.watchdog import wait_of
from commands.config import ConfigError, RunConfig, load_config
from commands.folder import FACT_TOPICS, find_run
from commands.options import ConfigFile, Overrides, RunName, Runs, console
from commands.report import page, panels, tiles
from streams.archive.segments import ArchiveLog, partitions_in
from streams.log.kafka import KafkaLog
from streams.log.port import LogUnavailable
from streams.log.reader import EventReader
from streams.log.topics import partitions_of

MOST_POLLS = 50
SCRIPT = """<script nonce="{nonce}">
const panels = document.getElementById("panels"), lineage = document.getElementById("lineage");
const form = document.getElementById("which"); let count = 0;
async function fill(box, address) {{
  try {{
    const answer = await fetch(address);
    if (answer.ok) box.innerHTML = await answer.text();
    document.body.dataset.state = answer.ok ? "live" : "error";
  }} catch (error) {{ document.body.dataset.state = "gone"; }}
}}
async function refresh() {{
  await fill(panels, "panels");
  document.body.dataset.refreshes = String(++count);
  setTimeout(refresh, 2000);
}}
form.addEventListener("submit", event => {{
  event.preventDefault();
  fill(lineage, "lineage?task=" + encodeURIComponent(form.task.value));
}});
refresh();
</script>"""


class RunSource:
    """The facts of one run, brought up to date on demand. Thread-safe.

    Args:
        observer: where events come from; makes itself anew when asked.
        run_id: the run; ``None`` takes the one that started last.
    """

    def __init__(self, observer: Callable[[], EventReader], run_id: str | None) -> None:
        self._observer = observer()
        self._asked_for = run_id
        self._runs = LogIndex()
        self._lock = threading.Lock()
        self.trouble = ""

    def facts(self) -> RunIndex:
        """The run as the log has it now; what was known before if the log cannot be reached."""
        with self._lock:
            try:
                for _ in range(MOST_POLLS):
                    events = self._observer.poll(0.05)
                    self._runs.add(event for event in events if self._asked_for in (None, event.run_id))
                    if not events:
                        break
                self.trouble = ""
            except LogUnavailable as error:
                self.trouble = str(error)
            return self._runs.run(self._asked_for or self._runs.newest)


def archive_source(name: str | None, runs: Path) -> RunSource:
    """A run by its archive, finished or still being written.

    Raises:
        ConfigError: no such run.
    """
    folder = find_run(name, runs)

    def observer() -> EventReader:
        held = partitions_in(folder.archive)
        partitions = {topic: held.get(topic, 1) for topic in FACT_TOPICS}
        return EventReader(ArchiveLog(folder.archive, partitions), FACT_TOPICS, partitions)

    return RunSource(observer, folder.run_id)


def kafka_source(name: str | None, config: RunConfig) -> RunSource:
    """A run by its topics.

    Raises:
        ConfigError: no broker is configured.
    """
    if not config.kafka.bootstrap_servers:
        raise ConfigError("kafka.bootstrap_servers is empty; give it, or leave --kafka out to read an archive")
    connection = config.kafka.connection()
    return RunSource(lambda: EventReader(KafkaLog(connection), FACT_TOPICS, partitions_of(connection)), name)


def panels_html(facts: RunIndex, trouble: str) -> str:
    """Tiles, the current wait and every chart."""
    wait = None if facts.finished else wait_of(facts.pool)
    end = facts.finished.outcome.value if facts.finished else ""
    state = trouble or (wait.text if wait else "finished" if end in ("", "completed") else end)
    return f'<p class="lead" id="wait">{escape(state)}</p>{tiles(summary_of(facts))}<main>{panels(facts)}</main>'


def whole_page(facts: RunIndex, trouble: str, nonce: str) -> str:
    """The page as it is first sent: complete without a script, kept fresh by one."""
    chosen = busiest_task(facts.pool)
    options = "".join(f'<option value="{escape(task_id)}"></option>' for task_id in sorted(facts.pool.tasks))
    lineage = (
        f'<section class="wide"><h2>Lineage of a task</h2><form id="which"><input name="task" list="tasks" size="48" '
        f'value="{escape(chosen)}" aria-label="task id"><datalist id="tasks">{options}</datalist> '
        "<button>show</button></form>"
        f'<div id="lineage">{lineage_html(facts.pool, chosen) if chosen else ""}</div></section>'
    )
    run_id = facts.pool.run_id or "(not started)"
    body = f'<div id="panels">{panels_html(facts, trouble)}</div><main>{lineage}</main>'
    return page(f"Run {run_id}", "live view, refreshed every two seconds", body, SCRIPT.format(nonce=nonce))


def make_app(source: RunSource) -> web.Application:
    """The web application over one source."""

    async def index(request: web.Request) -> web.Response:
        facts, nonce = await asyncio.to_thread(source.facts), secrets.token_urlsafe(16)
        text = await asyncio.to_thread(whole_page, facts, source.trouble, nonce)
        return answer(text, nonce)

    async def fresh_panels(request: web.Request) -> web.Response:
        facts = await asyncio.to_thread(source.facts)
        return answer(await asyncio.to_thread(panels_html, facts, source.trouble))

    async def lineage(request: web.Request) -> web.Response:
        facts = await asyncio.to_thread(source.facts)
        return answer(lineage_html(facts.pool, request.query.get("task", "")))

    async def figures(request: web.Request) -> web.Response:
        return web.json_response(summary_of(await asyncio.to_thread(source.facts)))

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response(
            {"service": "dashboard", "healthy": not source.trouble}, status=503 if source.trouble else 200
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/", index),
            web.get("/panels", fresh_panels),
            web.get("/lineage", lineage),
            web.get("/summary.json", figures),
            web.get("/healthz", healthz),
        ]
    )
    return app


def answer(text: str, nonce: str = "") -> web.Response:
    """HTML that may load nothing and run no script but the page's own."""
    script = f"'nonce-{nonce}'" if nonce else "'none'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {script}; connect-src 'self'; form-action 'none'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return web.Response(text=text, content_type="text/html", headers=headers)


async def listen(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Start answering; returns the runner to clean up and the port."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, runner.addresses[0][1]


def dashboard(
    name: RunName = None,
    runs: Runs = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8900,
    live: Annotated[
        bool, typer.Option("--kafka", help="Read the topics of kafka.bootstrap_servers instead of an archive.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """A web page of a run, live or from its archive: pool, rewards, synthesis, lineage."""
    source = (
        kafka_source(name, load_config(config, os.environ, overrides or [])) if live else archive_source(name, runs)
    )

    async def forever() -> None:
        try:
            runner, number = await listen(make_app(source), host, port)
        except OSError as error:
            raise ConfigError(f"dashboard: cannot listen on {host}:{port}: {error}; choose another --port") from error
        console.print(f"dashboard: http://{host}:{number}/  (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    try:
        asyncio.run(forever())
    except KeyboardInterrupt:
        console.print("dashboard ended", highlight=False)
