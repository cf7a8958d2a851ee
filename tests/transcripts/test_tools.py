"""The tools of the transcripts: what is compared, what is not, and how it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import dm_env_rpc_client as d
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from tests.transcripts import recorded_files
from tests.transcripts.canonical import Placeholders, canonical
from tests.transcripts.compare import differences
from tests.transcripts.environments import Counter
from tests.transcripts.scenarios.playing import act
from tests.transcripts.scene import Scenario, Scene, Shared, transcript
from tests.transcripts.streams import turns
from tests.transcripts.tap import CLIENT, SERVER, Chunk

Response = pb.EnvironmentResponse


def form(message: pb.EnvironmentResponse, by_hand: bool = True) -> str:
    data = message.SerializeToString()
    return canonical(data, Response, Placeholders(), by_hand).line("<", None)


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


def test_names_stay_apart() -> None:
    replace = Placeholders()
    assert replace("world-5 world-9 world-5") == "<world 1> <world 2> <world 1>"


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


def test_of_a_traceback_the_frames_of_environments_are_compared() -> None:
    from google.rpc import error_details_pb2

    def refused(*frames: str) -> str:
        response = Response()
        response.error.code = 13
        detail = error_details_pb2.DebugInfo(stack_entries=frames, detail="x")
        response.error.details.add().Pack(detail)
        return form(response)

    inner = '  File "/a/transcripts/environments.py", line 9, in step\n    x\n'
    outer = '  File "/a/dm_env_rpc_client/server/session.py", line 9, in answer\n    y\n'
    assert refused(outer, inner) == refused(inner.replace("9", "77"))
    assert refused(inner) != refused(inner.replace("step", "reset"))


def test_what_cannot_be_read_is_compared_as_bytes() -> None:
    found = canonical(b"\xff\xff", Response, Placeholders(), True)
    assert (found.kind, found.data) == ("unreadable", b"\xff\xff")


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


def test_turns_join_what_one_end_sent() -> None:
    chunks = [Chunk(CLIENT, b"a"), Chunk(CLIENT, b"b"), Chunk(SERVER, b"c"), Chunk(CLIENT, b"d")]
    assert turns(chunks) == [Chunk(CLIENT, b"ab"), Chunk(SERVER, b"c"), Chunk(CLIENT, b"d")]


def test_a_scenario_has_what_was_sent_what_was_answered_and_what_was_seen() -> None:
    def play(scene: Scene) -> None:
        with d.make(scene.serve(Counter, token="t"), token="t") as env:
            env.reset()
            scene.see("reward", env.step(act(1)).reward)
            scene.cut()
            with scene.fails("step"):
                env.step(act(1))

    with Shared() as shared:
        lines = transcript(Scenario(play), shared)
    assert lines[0] == "-- stream authorization='Bearer t'"
    assert [line.split()[1] for line in lines if line.startswith(">")] == [
        "create_world",
        "join_world",
        "step",
        "step",
    ]
    assert sum(line.startswith("< step") for line in lines) == 2
    assert ". reward float64(0.5)" in lines
    assert any("step: ConnectionLostError" in line for line in lines)
