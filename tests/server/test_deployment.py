"""The guides to deployment: their commands run, the manifests are valid and agree with one another.

Docker is not needed. What the Dockerfile runs is run here, in folders of the test.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import dm_env_rpc_client
from dm_env_rpc_client import Tls, make
from tests.support.certificates import Authority
from tests.support.groups import need
from tests.support.ports import HeldPort
from tests.support.stopwatch import patience

dockerfile_parse = pytest.importorskip("dockerfile_parse")

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "how-to"
# The page that has the blocks of a language.
PAGES = {
    "sh": "tls-and-tokens.md",
    "python": "containers.md",
    "text": "containers.md",
    "dockerfile": "containers.md",
    "yaml": "kubernetes.md",
}
MOUNTED = "/run/engine"
PORT = 50051


def blocks(language: str) -> list[str]:
    text = (GUIDES / PAGES[language]).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def port() -> Iterator[int]:
    with HeldPort() as held:
        yield held.number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the environment, and the command where a shell finds it."""
    (tmp_path / "my_envs.py").write_text(blocks("python")[0])
    command = tmp_path / "bin" / "dm-env-rpc"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dm_env_rpc_client "$@"\n')
    command.chmod(0o755)
    return tmp_path


def surroundings(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the folder, which ends well."""
    ended = subprocess.run(
        command, cwd=folder, env=surroundings(folder), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended


@contextlib.contextmanager
def running(
    command: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.certificates
def test_the_commands_run_one_after_another(folder: Path, port: int) -> None:
    script = "\n".join(blocks("sh")).replace(str(PORT), str(port))
    # The last command waits for the server, which SIGTERM has ended.
    finished = run(["bash", "-euo", "pipefail", "-c", script], folder)
    assert f"localhost:{port} is SERVING" in finished.stdout
    assert "stopping" in finished.stderr
    secret = (folder / "token").read_text().strip()
    assert len(secret) == 64
    assert secret not in finished.stdout + finished.stderr
    for name in ("server.key", "token"):
        assert (folder / name).stat().st_mode & 0o077 == 0


class Dockerfile:
    """The instructions of the last stage, and the commands of the first."""

    def __init__(self) -> None:
        (text,) = blocks("dockerfile")
        parser = dockerfile_parse.DockerfileParser(fileobj=io.BytesIO(text.encode()))
        stages: list[list[tuple[str, str]]] = []
        for each in parser.structure:
            if each["instruction"] == "FROM":
                stages.append([])
            stages[-1].append((each["instruction"], each["value"]))
        self.built, self.run = stages

    def value(self, instruction: str) -> str:
        (found,) = (value for name, value in self.run if name == instruction)
        return found

    def command(self, instruction: str, mounted: Path, port: int) -> list[str]:
        """A command in the exec form, with files and a port of the test."""
        text = self.value(instruction)
        command: list[str] = json.loads(text[text.index("[") :])
        return [
            part.replace(MOUNTED, str(mounted)).replace(f":{PORT}", f":{port}") for part in command
        ]


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return Dockerfile()


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    need("certificates")
    authority = Authority(tmp_path / "mounted")
    issued = authority.issue("server")
    (tmp_path / "mounted" / "token").write_text("secret\n")
    names = {path.name for path in (authority.ca, issued.cert, issued.key)}
    assert names == {"ca.crt", "server.crt", "server.key"}
    return tmp_path / "mounted"


@pytest.mark.certificates
def test_what_the_container_runs_serves_is_healthy_and_ends(
    dockerfile: Dockerfile, folder: Path, mounted: Path, port: int
) -> None:
    command = dockerfile.command("ENTRYPOINT", mounted, port)
    with running(command, folder, surroundings(folder)) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"address": f"0.0.0.0:{port}"}
        run(dockerfile.command("HEALTHCHECK", mounted, port), folder)
        tls = Tls(ca=str(mounted / "ca.crt"))
        with make(f"localhost:{port}", {"start": 2}, credentials=tls, token="secret") as env:
            assert env.reset().observation["value"] == 2
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=patience(30))
        assert process.returncode == 0
    lines = said.splitlines()
    assert "stopping" in lines
    for line in lines:
        if line != "stopping":
            assert json.loads(line)["level"] == "info"


def test_the_container_has_a_user_without_rights_and_no_secrets(dockerfile: Dockerfile) -> None:
    instructions = [name for name, _ in dockerfile.run]
    uid = dockerfile.value("USER")
    assert int(uid) >= 10000
    assert any(f"useradd --uid {uid} " in value for name, value in dockerfile.run if name == "RUN")
    assert instructions.index("USER") < instructions.index("ENTRYPOINT")
    assert dockerfile.value("EXPOSE") == str(PORT)
    stages = (*dockerfile.built, *dockerfile.run)
    copied = [value for name, value in stages if name == "COPY"]
    assert not any(word in value for value in copied for word in (".key", "token", "secret"))
    assert "requirements.txt *.whl ./" in copied
    for name in ("ENTRYPOINT", "HEALTHCHECK"):
        assert dockerfile.value(name).rstrip().endswith("]"), "signals need the exec form"


def test_the_requirements_name_the_wheel_that_a_clone_makes() -> None:
    name = f"dm_env_rpc_client-{dm_env_rpc_client.__version__}-py3-none-any.whl"
    assert blocks("text")[0] == f"./{name}[cli]\n"


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The objects of the manifest, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(blocks("yaml")[0])}


@pytest.mark.parametrize("version", ["1.28", "newest"])
def test_the_manifest_is_valid_for_kubernetes(manifest: dict[str, Any], version: str) -> None:
    # Imported here, since it takes seconds, and every process of a run imports this file.
    import kubernetes_validate

    assert set(manifest) == {"Deployment", "Service"}
    if version == "newest":
        version = kubernetes_validate.latest_version()
    for each in manifest.values():
        kubernetes_validate.validate(each, version, strict=True)
    # The fragment with the probes of the kubelet, in their places.
    deployment_ = json.loads(json.dumps(manifest["Deployment"]))
    (container,) = deployment_["spec"]["template"]["spec"]["containers"]
    probes = yaml.safe_load(blocks("yaml")[1])
    assert {name for name in probes if name in container} == set(probes)
    container.update(probes)
    kubernetes_validate.validate(deployment_, version, strict=True)
    container["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment_, version, strict=True)


def test_the_parts_of_the_manifest_belong_together(
    manifest: dict[str, Any], dockerfile: Dockerfile
) -> None:
    spec = manifest["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    service = manifest["Service"]["spec"]
    assert service["selector"].items() <= labels.items()
    assert service["clusterIP"] == "None"  # Headless; not the null of YAML.
    (port,) = container["ports"]
    assert port["containerPort"] == PORT
    (served,) = service["ports"]
    assert (served["port"], served["targetPort"]) == (PORT, port["name"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert MOUNTED in {mount["mountPath"] for mount in container["volumeMounts"]}
    security = {**pod["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert str(security["runAsUser"]) == dockerfile.value("USER")
    assert security["fsGroup"] == security["runAsGroup"] == security["runAsUser"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    (secrets,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert secrets["defaultMode"] & 0o007 == 0


def test_the_probes_are_the_health_check_of_the_container(
    manifest: dict[str, Any], dockerfile: Dockerfile
) -> None:
    (container,) = manifest["Deployment"]["spec"]["template"]["spec"]["containers"]
    text = dockerfile.value("HEALTHCHECK")
    expected = json.loads(text[text.index("[") :])
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"] == expected
        # Longer than the command waits, or the kubelet kills it without a word.
        assert container[probe]["timeoutSeconds"] > 5
    assert "livenessProbe" not in container
