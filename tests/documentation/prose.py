"""The prose of the project, and sentences drawn from it: `python -m tests.documentation.prose`.

    python -m tests.documentation.prose --seed 7           # 20 of docs, 20 of docstrings, 10 errors
    python -m tests.documentation.prose --seed 7 --json drawn.json

The sentences are for a reader who has not seen them before: which need a rewrite? The same seed
draws the same sentences of the same texts.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import random
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dm_env_rpc_client"
DOCS, DOCSTRINGS, ERRORS = "docs", "docstrings", "errors"
DRAWN = {DOCS: 20, DOCSTRINGS: 20, ERRORS: 10}
_FEWEST_WORDS = 5


class Text(NamedTuple):
    """A piece of prose.

    Attributes:
      kind: `DOCS`, `DOCSTRINGS` or `ERRORS`.
      where: its file and line.
      text: without markup for code blocks; a value in an error text is `{}`.
    """

    kind: str
    where: str
    text: str


def pages() -> list[Path]:
    """Returns README, CONTRIBUTING and the pages of docs/."""
    docs = (path for path in (ROOT / "docs").rglob("*.md") if "notebooks" not in path.parts)
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(docs)]


def sources() -> list[Path]:
    """Returns the files of the package, without the generated ones."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "_proto" not in path.parts)


def texts() -> Iterator[Text]:
    """Yields the paragraphs of the documents, the docstrings and the texts of errors."""
    for path in pages():
        name = path.relative_to(ROOT).as_posix()
        for line, paragraph in _paragraphs(path.read_text()):
            yield Text(DOCS, f"{name}:{line}", paragraph)
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                if isinstance(node.value.value, str):
                    for paragraph in _docstring(node.value.value):
                        yield Text(DOCSTRINGS, f"{name}:{node.lineno}", paragraph)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for text in filter(None, map(_literal, node.exc.args)):
                    yield Text(ERRORS, f"{name}:{node.lineno}", text)


def _paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yields the paragraphs and list entries of a page, without code, tables and headings."""
    lines: list[str] = []
    is_code = False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        ends = not line.strip() or is_code or line.lstrip().startswith(("```", "|", "#", "<"))
        begins = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if (ends or begins) and lines:
            yield number - len(lines), " ".join(lines)
            lines = []
        if not ends:
            lines.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line).strip())


def _docstring(docstring: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring, and the entries of its sections, such as Args."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        label, _, rest = paragraph.partition("\n")
        if label in ("Args:", "Attributes:", "Raises:"):
            for entry in re.split(r"\n(?=  \S)", "\n" + rest)[1:]:
                yield " ".join(entry.split())
        elif label in ("Returns:", "Yields:"):
            yield " ".join(rest.split())
        elif not re.match(r"\s*(?:>>>|::|    )", paragraph):
            yield " ".join(paragraph.split())


def _literal(node: ast.expr) -> str | None:
    """The text of a literal, with `{}` for values; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
        return "".join(map(str, parts))
    return None


def sentences(text: Text) -> Iterator[str]:
    """Yields the sentences of a text that are long enough to be judged; an error text is one."""
    if text.kind == ERRORS:
        parts = [text.text]
    else:
        parts = re.split(r"(?<=[.!?:])\s+(?=[A-Z`\"])", text.text)
    for part in parts:
        if len(part.split()) >= _FEWEST_WORDS:
            yield part


def drawn(seed: int) -> list[Text]:
    """Returns sentences drawn at random, as many of each kind as `DRAWN` has."""
    found: dict[str, list[Text]] = {kind: [] for kind in DRAWN}
    for text in texts():
        found[text.kind] += [text._replace(text=each) for each in sentences(text)]
    chooser = random.Random(seed)
    return [each for kind, count in DRAWN.items() for each in chooser.sample(found[kind], count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.documentation.prose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write them to a file")
    options = parser.parse_args()
    found = drawn(options.seed)
    for index, each in enumerate(found, 1):
        print(f"{index:2} {each.where}\n{textwrap.indent(textwrap.fill(each.text, 96), '   ')}")
    if options.json:
        listed = [each._asdict() for each in found]
        options.json.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
