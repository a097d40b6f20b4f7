"""The compose file, the images and what they mount: valid, pinned, closed by default, and in step with the code."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from compose_spec import ComposeSpecification, PyCompose
from pydantic import ValidationError
from typer.testing import CliRunner

from cli import app
from commands.config import load_config
from streams.log.topics import KEEP_FOREVER
from tests.stack.stack import COMPOSE, ROOT, compose

FILE = compose()
SERVICES = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if service.get("image", "").startswith("rods-")}
TEXT = COMPOSE.read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def specification() -> dict:
    """The file as Compose hands it on: scaled services with a number."""
    values = json.loads(json.dumps(FILE))
    values["services"]["worker"]["deploy"]["replicas"] = int(values["services"]["worker"]["deploy"]["replicas"])
    return values


def test_the_file_keeps_to_the_compose_specification() -> None:
    ComposeSpecification.model_validate(specification())
    parsed = PyCompose.from_json(json.dumps(specification()))
    parsed.validate()
    assert set(parsed.service_names()) == set(SERVICES)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("services", "kafka", "restart"), "sometimes"),
        (("services", "worker", "depends_on"), {"kafka": {"condition": "up"}}),
        (("services", "kafka", "ports"), ["not:a:port:at:all"]),
        (("services", "worker", "deploy"), {"replicas": "many"}),
    ],
)
def test_the_validators_would_notice_a_fault(path: tuple[str, ...], value: object) -> None:
    broken = specification()
    broken[path[0]][path[1]][path[2]] = value
    with pytest.raises((ValidationError, ValueError)):
        ComposeSpecification.model_validate(broken)
        PyCompose.from_json(json.dumps(broken)).validate()


def test_every_image_has_a_version() -> None:
    for name, service in SERVICES.items():
        tag = service["image"].rpartition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?", tag), f"{name}: {service['image']}"


def test_ports_are_on_loopback_unless_told_otherwise() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) >= 7 and all(port.startswith("127.0.0.1:") for port in published)
    opened = compose({"RODS_BIND": "0.0.0.0"})["services"]["kafka"]["ports"]
    assert opened == ["0.0.0.0:9092:9092"]


def test_every_service_has_health_restart_limits_and_no_privileges() -> None:
    for name, service in SERVICES.items():
        assert service["restart"] in ("unless-stopped", "on-failure"), name
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
        assert "healthcheck" in service or name in OURS, f"{name}: neither a health check nor an image of ours"
        if "gpu" not in service.get("profiles", []) or name == "trainer":
            assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name
    for name, service in OURS.items():
        assert service["read_only"] is True and "/tmp" in service["tmpfs"], name


def test_names_lead_somewhere() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in FILE["volumes"], (
                f"{name}: {volume}"
            )
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        assert set(service.get("secrets", [])) <= set(FILE["secrets"]), name
    assert all(
        service["depends_on"]["init-topics"]["condition"] == "service_completed_successfully"
        for name, service in OURS.items()
        if name != "init-topics"
    )


def test_profiles_add_what_they_say() -> None:
    def members(profile: str) -> set[str]:
        return {name for name, service in SERVICES.items() if profile in service.get("profiles", [])}

    assert members("cpu") == {"cpu-trainer"} and members("tls") == {"kafka-tls"}
    assert members("gpu") >= {"trainer", "policy", "synthesis-model"}
    devices = [
        SERVICES[name]["deploy"]["resources"]["reservations"]["devices"][0]
        for name in ("trainer", "policy", "synthesis-model")
    ]
    assert all(device["driver"] == "nvidia" and device["capabilities"] == ["gpu"] for device in devices)
    assert len({tuple(device["device_ids"]) for device in devices}) == 3


def test_every_command_line_is_one_of_ours() -> None:
    for name, service in OURS.items():
        command, *options = service["command"]
        answer = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
        assert answer.exit_code == 0, f"{name}: {command}: {answer.output}"
        for option in [option for option in options if option.startswith("--")]:
            assert option in answer.output, f"{name}: {command} has no {option}"


def test_the_environment_is_a_configuration_that_loads() -> None:
    for name, service in OURS.items():
        values = {key: str(value) for key, value in service["environment"].items() if value is not None}
        config = load_config(None, values, [])
        assert config.kafka.bootstrap_servers == "kafka:19092" and config.kafka.num_decision_partitions == 4, name
    secure = load_config(None, {"RODS_KAFKA__CLIENT": example("RODS_KAFKA__CLIENT")}, [])
    assert secure.kafka.client["sasl.password"] == "env:RODS_KAFKA_PASSWORD"
    assert load_config(ROOT / "deploy" / "gpu.toml", {}, []).trainer.dtype == "bfloat16"


def example(name: str) -> str:
    """The example value of a variable in .env.example."""
    return re.search(rf"^#?{name}=(.*)$", (ROOT / ".env.example").read_text(), re.M).group(1)


def test_every_variable_is_explained_and_every_explained_one_is_used() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", TEXT)) | {
        key for service in OURS.values() for key, value in service["environment"].items() if value is None
    }
    explained = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    assert used - {"KAFKA_CLUSTER_ID"} == explained


def test_no_secret_stands_in_what_is_committed() -> None:
    for path in (COMPOSE, ROOT / ".env.example", *(ROOT / "deploy").rglob("*")):
        if path.is_file() and "made" not in path.parts:
            text = path.read_text()
            assert not re.search(r"BEGIN [A-Z ]*PRIVATE KEY", text), path
            assert not re.search(
                r"(?i)(password|secret|token)\w*[\"']?[ \t]*[:=][ \t]*[\"']?(?!env:|file:|\$|\{)[a-z0-9]{8,}", text
            ), path
    assert "made/" in (ROOT / "deploy" / "tls" / ".gitignore").read_text()


def test_the_broker_takes_the_largest_event_and_forgets_nothing() -> None:
    for name in ("kafka", "kafka-tls"):
        settings = SERVICES[name]["environment"]
        assert (
            str(settings["KAFKA_MESSAGE_MAX_BYTES"]) == KEEP_FOREVER["max.message.bytes"]
            and settings["KAFKA_LOG_RETENTION_MS"] == -1
        )
        assert settings["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
        listeners = set(re.findall(r"(\w+)://", settings["KAFKA_LISTENERS"]))
        assert listeners == set(re.findall(r"(\w+):\w+", settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]))
        assert set(re.findall(r"(\w+)://", settings["KAFKA_ADVERTISED_LISTENERS"])) == listeners - {"CONTROLLER"}
    assert "SECURE:SASL_SSL" in SERVICES["kafka-tls"]["environment"]["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"]


def test_prometheus_asks_services_that_exist() -> None:
    jobs = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    asked = {
        target.partition(":")[0]
        for job in jobs
        for config in job.get("static_configs", [])
        for target in config["targets"]
    }
    asked |= {name for job in jobs for config in job.get("dns_sd_configs", []) for name in config["names"]}
    assert asked == {name for name in OURS if name not in ("init-topics", "dashboard")}


def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("hadolint")), "--no-color", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and not done.stdout, done.stdout


def test_images_are_built_from_stages_that_exist_run_without_root_and_ask_their_health() -> None:
    stages = dict(re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.M))
    parents = {name: parent for parent, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.M)}
    bodies = dict(zip(parents, re.split(r"^FROM .*$", DOCKERFILE, flags=re.M)[1:], strict=True))
    assert stages
    for name, service in OURS.items():
        target = service["build"]["target"]
        whole = bodies[target] + bodies.get(parents[target], "")
        assert "USER 10001" in whole and "HEALTHCHECK" in whole and 'CMD ["rods", "health"]' in whole, name
        assert 'ENTRYPOINT ["rods"]' in whole


def test_packages_come_before_our_code_and_from_the_lock_file() -> None:
    for body in re.split(r"^FROM .*$", DOCKERFILE, flags=re.M):
        if "COPY . ." in body and "install.sh" in body:
            assert body.index("install.sh") < body.index("COPY . .") < body.index("pip install --no-deps .")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
    wanted = project["dependencies"] + project["optional-dependencies"]["train"]
    missing = {re.split(r"[=<>\[; ]", name)[0].lower() for name in wanted} - locked
    assert not missing


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    assert {
        "analysis",
        "cli.py",
        "commands",
        "environments",
        "schemas",
        "streams",
        "synthesizer",
        "trainer",
        "requirements.lock",
    } <= kept
    assert not kept & {".env", "deploy", "runs", "tests"}


def test_the_installer_reads_names_from_the_project(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").write_text('#!/bin/sh\necho "$@" >> asked.txt\n')
    (tmp_path / "bin" / "pip").chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = str(ROOT / "deploy" / "install.sh")
    for what, heavy in (("streams", False), ("train", True)):
        subprocess.run(["sh", script, what], cwd=tmp_path, env=env, check=True, timeout=60)
        names = (tmp_path / "wanted.txt").read_text()
        assert "faust-streaming==" in names and ("torch==" in names) is heavy
    assert "--constraint requirements.lock --requirement wanted.txt" in (tmp_path / "asked.txt").read_text()
    assert (
        subprocess.run(["sh", script, "everything"], cwd=tmp_path, env=env, check=False, capture_output=True).returncode
        == 2
    )


def test_certificates_and_users_are_made_once_and_kept_private(tmp_path: Path) -> None:
    script = tmp_path / "make.sh"
    shutil.copy(ROOT / "deploy" / "tls" / "make.sh", script)
    subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=60)
    made = tmp_path / "made"
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=60)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before
    for name in ("ca.key", "trainer.password"):
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600
    jaas = (made / "jaas.conf").read_text()
    assert "secure.KafkaServer" in jaas and f'user_trainer="{(made / "trainer.password").read_text().strip()}"' in jaas
    checked = subprocess.run(
        ["openssl", "verify", "-CAfile", str(made / "ca.pem"), str(made / "kafka.crt")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "OK" in checked.stdout
