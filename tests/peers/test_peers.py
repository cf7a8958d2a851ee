"""Peers are built once for each state of their sources, and end when they are told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.processes import is_alive
from tests.peers import building
from tests.peers.building import MissingToolchainError, build
from tests.peers.process import PeerProcess
from tests.peers.servers import SERVERS
from tests.support.programs import run_python
from tests.support.scripted import settles

TOOLS = (("echo 1.0", "a-package"),)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache, and a folder of peers with one language."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "PEERS", tmp_path / "peers")
    sources = tmp_path / "peers" / "latin"
    sources.mkdir(parents=True)
    (sources / "main").write_text("salve")
    build.cache_clear()
    return tmp_path / "cache" / "dm_env_rpc_client" / "peers"


def built(
    script: str = 'cp "$SOURCES/main" result', tools: tuple[tuple[str, str], ...] = TOOLS
) -> Path:
    """Builds as another process would, which remembers nothing."""
    build.cache_clear()
    return build("latin", tools, script)


def test_what_is_built_is_built_once(cache: Path) -> None:
    script = 'cp "$SOURCES/main" result; date +%N > moment'
    first = built(script)
    assert first.parent == cache
    assert (first / "result").read_text() == "salve"
    moment = (first / "moment").read_text()
    assert built(script) == first
    assert (first / "moment").read_text() == moment
    assert found(cache) == [first.name]


def found(cache: Path) -> list[str]:
    """What is in the cache beside the locks."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


def test_what_has_changed_is_built_again(tmp_path: Path) -> None:
    folders = [built(), built('cp "$SOURCES/main" result; true')]
    folders.append(built(tools=(("echo 2.0", "a-package"),)))
    (tmp_path / "peers" / "latin" / "main").write_text("ave")
    folders.append(built())
    assert len(set(folders)) == 4
    assert (folders[-1] / "result").read_text() == "ave"


def test_a_toolchain_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingToolchainError, match="is gcc-latin installed"):
        built(tools=(("no-such-compiler --version", "gcc-latin"),))


def test_what_cannot_be_installed_is_told_apart_from_what_does_not_build(cache: Path) -> None:
    with pytest.raises(MissingToolchainError, match="no network"):
        built('echo "no network" >&2; exit 75')
    assert found(cache) == []


@pytest.mark.parametrize("script", ['echo "could not build" >&2; exit 1', "false; true"])
def test_a_build_that_fails_says_why_and_leaves_nothing(cache: Path, script: str) -> None:
    with pytest.raises(RuntimeError, match="could not build"):
        built(script)
    assert found(cache) == []


def test_a_peer_ends_when_the_process_that_started_it_dies() -> None:
    program = (
        "import os\n"
        "from tests.peers.servers import SERVERS\n"
        "peer = SERVERS['grpcio']()\n"
        "print(peer.hear(), peer.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    pid = int(run_python("-c", program, code=1).stdout.split()[1])
    assert settles(lambda: not is_alive(pid)), "the peer goes on"


def test_a_peer_that_does_not_start_says_so() -> None:
    with (
        pytest.raises(RuntimeError, match="exit code 3"),
        PeerProcess(["sh", "-c", "exit 3"]) as it,
    ):
        it.hear()


def test_a_peer_stops_in_good_order_and_may_be_stopped_again() -> None:
    peer = SERVERS["grpcio"]()
    peer.hear()
    peer.stop()
    peer.stop()
    assert not Path(f"/proc/{peer.pid}").exists()
