"""What README, CONTRIBUTING and the guides say is so: snippets run, links lead somewhere."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import typer.testing

from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.protocol import lifecycle
from tests.bridges.env_c_api.compiling import compile_library
from tests.snippets import snippets
from tests.support.ports import HeldPort

ROOT = Path(__file__).resolve().parents[2]


def guides() -> list[str]:
    """The pages below docs/. The build of the site copies the notebooks there, while tests run."""
    names = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return sorted(name for name in names if not name.startswith("docs/notebooks/"))


GUIDES = guides()
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *GUIDES)
README = (ROOT / "README.md").read_text()
MOST_WORDS = 900


def document(name: str) -> str:
    return (ROOT / name).read_text()


FOREIGN = {
    "docs/how-to/metrics-and-traces.md": "opentelemetry.sdk",
    "docs/how-to/parquet.md": "pyarrow",
    "docs/how-to/wrappers.md": "dm_env_wrappers",
    "docs/tutorials/ppo.md": "stable_baselines3",
    "docs/tutorials/tensor-simulator.md": "torch",
}
"""Pages whose snippets need a package of the extra `test-foreign`."""

PAGES_WITH_SNIPPETS = ["README.md", *(name for name in GUIDES if snippets(document(name)))]


def prose(text: str) -> str:
    """The lines that are not code between fences."""
    return "".join(text.split("```")[::2])


installing = runpy.run_path(str(ROOT / "docs" / "install_texts.py"))["installing"]
FROM_CLONE = re.compile(r"pip install '?\.|\.whl\[")
FROM_INDEX = re.compile(r"pip install [\"']?dm-env-rpc-client|^dm-env-rpc-client\[", re.MULTILINE)


@pytest.mark.parametrize("published", [False, True])
def test_pages_say_how_to_install_what_is_published(published: bool) -> None:
    right, wrong = (FROM_INDEX, FROM_CLONE) if published else (FROM_CLONE, FROM_INDEX)
    saying = set()
    for name in GUIDES:
        page = installing(document(name), published)
        saying |= {name} & {name for _ in right.finditer(page)}
        assert wrong.findall(page) == [], name
        assert not re.search("<!-- (clone|index)", page), name
    assert saying >= {
        "docs/index.md", "docs/how-to/containers.md", "docs/tutorials/first-environment.md",
        "docs/tutorials/first-server.md", "docs/tutorials/ppo.md",
    }  # fmt: skip


def test_a_page_without_the_site_says_what_works_in_a_clone() -> None:
    for name in GUIDES:
        shown = re.sub(r"<!-- (clone |index\n.*?)-->\n", "", document(name), flags=re.DOTALL)
        assert shown == installing(document(name), published=False)


def stand_ins(name: str, port: HeldPort) -> Mapping[str, str]:
    """What a guide calls by names of its reader's own; a port for the one that it names."""
    if name == "docs/how-to/c-libraries.md":
        return {
            "./libengine.so": compile_library("complete", "1.4"),
            "engine_connect": "complete_connect",
        }
    if name == "docs/how-to/behind-nat.md":
        file = ROOT / "tests/documentation/forwarding.py"
        return {'"ssh"': f"{sys.executable!r}, {str(file)!r}", "5000": str(port.number)}
    if name == "docs/tutorials/ppo.md":
        return {"STEPS = 100_000": "STEPS = 4_000"}
    if name == "docs/tutorials/tensor-simulator.md":
        return {"ITERATIONS = 60": "ITERATIONS = 2"}
    return {}


def run_snippets(name: str, folder: Path, timeout: float = 100.0) -> None:
    """Runs the snippets of a page in order in a clean process, and compares what they print."""
    program = "\n".join(snippets(document(name)))
    path = folder / "snippets.py"
    with HeldPort() as port:
        for own, stand_in in stand_ins(name, port).items():
            program = program.replace(own, stand_in)
        path.write_text(program)
        finished = subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    assert (finished.returncode, finished.stderr) == (0, "")
    # What a comment says that a line prints is what it prints.
    for promised in re.findall(r"print\(.*\)  # (.*)", program):
        for part in promised.split("..."):
            assert part in finished.stdout, promised


@pytest.mark.parametrize("name", [name for name in PAGES_WITH_SNIPPETS if name not in FOREIGN])
def test_the_snippets_run_in_order_in_a_clean_process(name: str, tmp_path: Path) -> None:
    run_snippets(name, tmp_path)


def test_readme_is_short() -> None:
    assert len(README.split()) < MOST_WORDS


def test_the_first_snippet_of_each_starts_what_it_needs() -> None:
    without = [
        name
        for name in PAGES_WITH_SNIPPETS
        if "localhost:50051" in "".join(snippets(document(name)))
    ]
    assert without == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_relative_links_lead_somewhere(name: str) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document(name)):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        path = (ROOT / name).parent / target if target else ROOT / name
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            lost.append(link)
    assert lost == []


def test_every_file_that_contributing_names_is_there() -> None:
    package = ROOT / "dm_env_rpc_client"
    named = set(re.findall(r"`([\w/]+\.py)`", document("CONTRIBUTING.md")))
    assert len(named) > 20
    assert {name for name in named if not any((at / name).exists() for at in (ROOT, package))} == (
        set()
    )


def test_the_guide_to_the_states_has_the_table() -> None:
    requests = ("join_world", "step", "reset", "reset_world", "leave_world")
    guide = document("docs/explanations/states.md")
    for state in lifecycle.State:
        possible = [lifecycle.next_states(state, request) for request in requests]
        cells = [
            ", ".join(each.name for each in lifecycle.State if each in states) or "-"
            for states in possible
        ]
        assert f"| {state.name} | {' | '.join(cells)} |" in guide


def test_there_are_exactly_two_set_up_commands_of_one_line() -> None:
    section = README.split("## Set up")[1].split("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(commands) == 2
    assert "dm-env-rpc run" in commands[0]
    assert "pytest" in commands[1]


def named_commands() -> Iterator[str]:
    for text in (README, *map(document, GUIDES)):
        yield from re.findall(r"(?:^|`)dm-env-rpc ([a-z]+)", text, re.MULTILINE)


def test_every_command_that_is_mentioned_exists() -> None:
    names = set(named_commands())
    assert {"run", "serve", "inspect", "play", "properties", "check", "health", "bench"} <= names
    for name in sorted(names):
        result = typer.testing.CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0, name
