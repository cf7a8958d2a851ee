"""Phrases that no text of the project has, and the form of docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documentation import prose
from tests.documentation.prose import DOCSTRINGS, DRAWN, ERRORS, ROOT
from tests.sizes import measured

PHRASES = (
    "anew",
    "are told",
    "as many as the",
    "be it",
    "for ever",
    "has to be there",
    "in vain",
    "is told",
    "nothing(?: else)? is said",
    "owed",
    "put together",
    "somebody",
    "takes? note",
    "told of",
    "under way",
    "was told",
    "were told",
    "what came of",
    "what has come",
    "what is said",
    "whoever",
    "wished",
)
"""What a native technical writer does not write: each of them has a shorter noun or verb."""
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)

THIRD_PERSON = re.compile(r"(?!(?:[A-Z]\w*ss|Does)\b)[A-Z][a-z]+s\b")
"""How a docstring of a function would begin in the third person: "Returns", "Closes"."""
NOUNS = {"Limits", "Suites", "Priorities", "Python", "Seconds", "Settings", "Specs", "Values"}


# Python 3.12 and later have a kind of token for the parts of an f-string.
_PROSE_TOKENS = {
    tokenize.COMMENT,
    tokenize.STRING,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
}


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page, or of the comments and texts of a module."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in _PROSE_TOKENS:
            yield token.start[0], " ".join(token.string.split())


def test_no_text_has_a_phrase_of_a_translation() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase[0]}"
        for path in [*prose.pages(), *prose.sources()]
        for line, text in lines_of(path)
        for phrase in _PHRASE.finditer(text)
    ]
    assert found == []


def test_the_phrases_are_found_at_word_boundaries() -> None:
    assert _PHRASE.findall("Whoever takes note that a step is under way, is told.") == [
        "Whoever", "takes note", "under way", "is told",
    ]  # fmt: skip
    assert _PHRASE.findall("followed by a renewal; the maybe item") == []


def test_docstrings_of_functions_are_imperative() -> None:
    found = []
    for path in prose.sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").split(" ")[0]
                if THIRD_PERSON.fullmatch(first) and first not in NOUNS:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {first}")
    assert found == []


def test_sentences_are_drawn_from_every_kind_of_text() -> None:
    found = prose.drawn(1)
    assert Counter(each.kind for each in found) == DRAWN
    assert found == prose.drawn(1) != prose.drawn(2)
    for each in found:
        name, _, line = each.where.partition(":")
        text = (ROOT / name).read_text().splitlines()
        assert len(text) >= int(line)
        if each.kind in (DOCSTRINGS, ERRORS):
            assert name.startswith("dm_env_rpc_client/")


@pytest.mark.parametrize("room", ["client", "environment", "server", "transports"])
def test_where_threads_meet_comments_say_why(room: str) -> None:
    comments = 0
    for path in (prose.PACKAGE / room).rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        comments += sum(
            token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa"))
            for token in tokens
        )
    assert comments >= 0.06 * measured(prose.PACKAGE / room).code


def test_no_comment_repeats_its_line() -> None:
    found = []
    for path in prose.sources():
        block: list[str] = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip().startswith("# "):
                block.append(line.strip())
                continue
            words = set(re.findall(r"[a-z]{4,}", " ".join(block).lower()))
            if len(words) > 1 and words <= set(re.findall(r"[a-z]{4,}", line.lower())):
                found.append(f"{path.relative_to(ROOT)}:{number}: {' '.join(block)}")
            block = []
    assert found == []
