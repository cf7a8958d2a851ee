"""The tools of the transcripts: what is compared, what is not, and how it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import dm_env_rpc_client as d
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.transcripts import recorded_files
from tests.transcripts.canonical import Placeholders, canonical
from tests.transcripts.compare import differences

Response = pb.EnvironmentResponse


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("joined world-3", "joined world-7-12"),
        ("at 127.0.0.1:4000", "at localhost:51"),
        ("no /tmp/x/a.so here", "no /home/me/.cache/b.so here"),
        ("unix:/tmp/a/b", "/tmp/a/b"),
        ("<f at 0x7f12ab>", "<f at 0x12>"),
        ("line 3 of it", "line 99 of it"),
        ("after 0.25 s", "after 13.5 s"),
        ("got np.float64(1.5)", "got 1.5"),
    ],
)
def test_names_addresses_paths_and_times_are_not_compared(one: str, other: str) -> None:
    assert Placeholders()(one) == Placeholders()(other)


@pytest.mark.parametrize("text", ["1.5", "a/b", "worlds-1", "type.googleapis.com/a.B", "3 steps"])
def test_other_texts_are_compared(text: str) -> None:
    assert Placeholders()(text) == text


def test_the_bytes_of_a_step_are_compared_as_they_are() -> None:
    tensor = d.pack_tensor(1)
    one, other = (pb.StepResponse(state="RUNNING", observations={uid: tensor}) for uid in (1, 2))
    # A map in two orders: both mean the same.
    orders = [
        Response(step=first).SerializeToString() + Response(step=second).SerializeToString()
        for first, second in ((one, other), (other, one))
    ]
    assert Response.FromString(orders[0]) == Response.FromString(orders[1])
    for by_hand, count in ((True, 2), (False, 1)):
        forms = {canonical(data, Response, Placeholders(), by_hand).data for data in orders}
        assert len(forms) == count


def test_a_file_gives_back_what_was_written_to_it(tmp_path: Path) -> None:
    long = ["-- stream", "> a", "> b", "< c"]
    transcripts = {
        "one": [*long, "-- seen", ". x"],
        "two": ["-- stream", "> b", *long, *long, "-- seen", ". x"],
        "three": [],
    }
    path = tmp_path / "some.txt"
    recorded_files.write(path, transcripts)
    assert recorded_files.read(path) == transcripts
    assert path.read_text().count("> a") == 1


def test_differences_are_told() -> None:
    assert differences(["a", "b"], ["a", "b"]) == []
    changed = differences(["a", "b", "c"], ["a", "d", "c"])
    assert {"-b", "+d"} <= set(changed)
    assert differences([], ["a"]) == ["+ a"]
