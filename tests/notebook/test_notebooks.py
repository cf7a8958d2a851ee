"""Every notebook runs from top to bottom, and is committed with its outputs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.system import children
from tests.notebook import sources
from tests.support.groups import need

NAMES = sorted(path.stem for path in sources.FOLDER.glob("*.ipynb"))
MAX_BYTES = 300_000
SECONDS = 90
ATTEMPTS = 3

# Each waits for a kernel to start and for those before it.
pytestmark = pytest.mark.timeout(240)


def execute(notebook: Any, folder: Path) -> Any:
    """Runs a notebook in a kernel of its own, in a folder of its own."""
    from nbclient import NotebookClient

    folder.mkdir()
    for attempt in range(ATTEMPTS):
        # The widgets that it shows are not kept: a page without a kernel cannot show them.
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            store_widget_state=False,
        )
        try:
            # This may be another thread than that in which pytest sets a variable for each test.
            asyncio.run(client.async_execute(env=children.variables({})))
            break
        except RuntimeError as error:
            # It is told ports that another process may take before it does.
            if attempt == ATTEMPTS - 1 or "Kernel died before replying" not in str(error):
                raise
    return notebook


@pytest.fixture(scope="module")
def nbclient() -> None:
    """Imported where it is needed: it takes 8 seconds, which each process of a run would take."""
    pytest.importorskip("nbclient")


@pytest.fixture(scope="module")
def executed(
    nbclient: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, concurrent.futures.Future[Any]]]:
    """All notebooks, by name; two at a time, for starting a kernel takes longer than most cells."""
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        # Kernels of this Python, and none that are configured elsewhere.
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            yield {name: pool.submit(execute, sources.read(name), folder / name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(
    name: str, executed: dict[str, concurrent.futures.Future[Any]], request: pytest.FixtureRequest
) -> None:
    if name == "06_bridges":
        need("compiler")
    notebook = executed[name].result()
    for output in [each for cell in notebook.cells for each in cell.get("outputs", [])]:
        assert output.output_type != "error"
        # Warnings and logs would be there as well.
        assert output.get("name") != "stderr", output.text
    if request.config.getoption("--rewrite-notebooks"):
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        sources.write(notebook, sources.FOLDER / f"{name}.ipynb")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_with_outputs_and_small(name: str) -> None:
    path = sources.FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < MAX_BYTES
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    text = path.read_text()
    assert "image/png" in text
    for private in (str(Path.home()), str(sources.FOLDER.parent), os.sep + "tmp" + os.sep):
        assert private not in text, f"{name} mentions {private}"
