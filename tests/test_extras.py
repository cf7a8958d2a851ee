"""What is said about an extra that is missing: which one, and a command that works here."""

from __future__ import annotations

import importlib.metadata
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dm_env_rpc_client import extras, version

FOLDER = "{folder}"
AT = "'dm-env-rpc-client[cli] @ {}'".format
ORIGINS = [
    ('{"url": "file://{folder}/a%20b", "dir_info": {"editable": true}}', "-e '{folder}/a b[cli]'"),
    ('{"url": "file://{folder}/it", "dir_info": {}}', AT("file://{folder}/it")),
    ('{"url": "https://host/it-0.1.whl", "archive_info": {}}', AT("https://host/it-0.1.whl")),
    (
        '{"url": "https://host/it", "subdirectory": "x", "vcs_info": {"vcs": "git"}}',
        AT("git+https://host/it#subdirectory=x"),
    ),
    (
        '{"url": "https://host/it", "vcs_info": {"vcs": "git", "requested_revision": "v1"}}',
        AT("git+https://host/it@v1"),
    ),
]
FROM_CLONE = "'.[cli]' in a clone of dm_env_rpc_client"
FROM_INDEX = "'dm-env-rpc-client[cli]'"
Install = Callable[[str | None], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Has the package be installed as a direct_url.json says; None if there is no such file."""

    def recorded(origin: str | None) -> None:
        class Installed:
            def read_text(self, name: str) -> str | None:
                assert name == "direct_url.json"
                return origin

        found = {"dm-env-rpc-client": Installed()}
        monkeypatch.setattr(importlib.metadata, "distribution", found.__getitem__)

    return recorded


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(("origin", "what"), ORIGINS)
def test_extras_are_installed_from_where_the_package_came_from(
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    origin: str,
    what: str,
    published: bool,
) -> None:
    for name in ("a b", "it"):
        (tmp_path / name).mkdir()
    install(origin.replace(FOLDER, str(tmp_path)))
    monkeypatch.setattr(version, "PUBLISHED", published)
    found = extras.install_command("cli")
    assert found == f"pip install {what.replace(FOLDER, str(tmp_path))}"
    assert shlex.split(found)[-1].count("[cli]") == 1


@pytest.mark.parametrize("origin", [None, '{"url": "file:///gone/it", "dir_info": {}}'])
@pytest.mark.parametrize(("published", "what"), [(False, FROM_CLONE), (True, FROM_INDEX)])
def test_one_setting_says_whether_an_index_has_the_package(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    origin: str | None,
    published: bool,
    what: str,
) -> None:
    install(origin)
    monkeypatch.setattr(version, "PUBLISHED", published)
    assert extras.install_command("cli") == f"pip install {what}"


def test_a_clone_that_is_on_the_path_and_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def distribution(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    clone = Path(__file__).parents[1]
    assert extras.install_command("cli") == f"pip install -e {shlex.quote(f'{clone}[cli]')}"


def test_what_another_room_has_said_is_not_said_again() -> None:
    with (
        pytest.raises(ModuleNotFoundError) as caught,
        extras.importing("sb3", "the outer one needs"),
        extras.importing("gymnasium", "the inner one needs"),
    ):
        raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")
    assert str(caught.value).startswith("No module named 'gymnasium'; the inner one needs the")
    assert "outer" not in str(caught.value)
    assert caught.value.name == "gymnasium"
    assert extras.is_told(caught.value)
