from __future__ import annotations

from dm_env_rpc_client.tensors.displays import markup

ATTACK = """<img src=x onerror="alert('1')">"""


def test_what_is_put_in_is_text_in_elements_and_in_attributes() -> None:
    escaped = markup.escape(ATTACK)
    assert not {"<", ">", '"', "'"} & set(escaped)
    assert markup.escape("a & b") == "a &amp; b"


def test_a_text_that_cannot_be_sent_is_shown_all_the_same() -> None:
    assert markup.escape("a\ud800b").encode() == b"a?b"


def test_a_long_text_is_cut() -> None:
    assert markup.shorten("a" * 10, 10) == "a" * 10
    assert markup.shorten("a" * 11, 10) == "a" * 9 + "…"
    assert len(markup.escape("a" * 1_000_000)) == markup.MAX_TEXT


def test_a_table_shows_its_first_rows_and_counts_the_others() -> None:
    rows = [(f"row{number};",) for number in range(markup.MAX_ROWS + 5)]
    html = markup.table(["name"], rows)
    assert f"row{markup.MAX_ROWS - 1};" in html
    assert f"row{markup.MAX_ROWS};" not in html
    assert "… and 5 more" in html
