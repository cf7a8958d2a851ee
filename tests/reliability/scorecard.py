"""The rows of the reliability scorecard, and what tests of them share.

A test of a row has the marker `pytest.mark.row(8)`, wherever in `tests/` it is; a file that is
about one row has it in `pytestmark`. `python -m tests.reliability` finds and runs them. A test says
what it saw through the fixture `seen`. `counts` scales a test down for the gate.

This module imports nothing of the package, so that any test may import it.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]

MODE = "SCORECARD"
"""The variable of the environment that tells tests that the scorecard's command runs them."""

FULL, QUICK = "full", "quick"


class Row(NamedTuple):
    """A row of the scorecard."""

    number: int

    tried: str

    expected: str
    """What has to be seen."""

    reference: str
    """What the PyPI package dm-env-rpc 1.1.7 did when the same was tried on it; may be empty."""


_ROWS = [
    Row(1, "a server is killed during a step, 200 times",
        "ConnectionLostError within 1 s, each time", "an exception class that is private to gRPC"),
    Row(2, "a server is stopped (SIGSTOP), request timeout set, 50 times",
        "DeadlineExceededError at most 0.2 s after the deadline; the connection is unusable",
        "has no deadlines; waited longer than 20 s"),
    Row(3, "a server is stopped (SIGSTOP), no timeout, only keepalive",
        "an error within 20 s", "keepalive is not configured"),
    Row(4, "a step that takes 45 s, with keepalive", "succeeds", ""),
    Row(5, "a port where nothing listens; wrong credentials",
        "an error within the timeout that names the address and the cause",
        "waits without end, or an empty text"),
    Row(6, "signals at 1,000 random points of synchronous calls",
        "0 stale and 0 lost answers afterwards",
        "the next call gets the previous answer"),
    Row(7, "1,000 cancelled coroutines", "0 stale answers, 0 lost answers", "InvalidStateError"),
    Row(8, "asyncio.gather of 10,000 requests on one connection", "10,000 right answers",
        "0 of 100 right"),
    Row(9, "8 threads with 5,000 requests each on one connection", "0 wrong answers",
        "500 of 502 wrong"),
    Row(10, "pipelines 1 to 256 requests deep, 10 % of the answers errors, 1,000,000 requests",
        "each future has the answer to its own request", "has no pipeline"),
    Row(11, "answers that are duplicate, missing, empty or of a wrong type",
        "the connection is unusable from the first sign on", "not noticed"),
    Row(12, "the server ends the stream with the status OK",
        "an exception of the package; StopIteration never", "StopIteration"),
    Row(13, "2,000 connections opened and closed",
        "at most 2 threads and no descriptor more; no open stream on the server after 1 s",
        "1 thread more for each"),
    Row(14, "500 attempts to connect that fail", "no thread and no descriptor more",
        "1 thread more for each"),
    Row(15, "close() in every state, twice, on a dead server; a process that ends without close()",
        "within 2 s, raises nothing, the body's own exception survives; the process exits",
        "raises; the process never exits"),
    Row(16, "fork, then use in the child, 100 times",
        "a clear error, no crash, no hang; a new connection in the child works",
        "8 of 8 crashed or hung"),
    Row(17, "an exception at each stage of creating and joining a world, 20 kinds",
        "no world and no agent is left on the server", "both are left"),
    Row(18, "state 0, state 99, transitions that the protocol does not allow",
        "ProtocolError; never a TimeStep", "a LAST that is false"),
    Row(19, "a reset that changes the specs", "they are adopted; the next step is FIRST",
        "RuntimeError, then MID"),
    Row(20, "1,000,000 generated tensors and specs, 100,000 answers with changed bytes",
        "a valid value or one error of the package; at most 64 MiB more memory",
        "arrays, or one of more than 5 kinds of exceptions"),
    Row(21, "16 bytes that broadcast to 2 GiB; 60 KB of strings that pad to 1.6 GB; 261 KB of "
        "gzip that holds 256 MiB", "refused within 50 ms of arrival; bounded memory",
        "all three are accepted"),
    Row(22, "every pair of dtypes with values at their edges, as actions",
        "exact, or an error that names the action; no value is changed",
        "300 becomes 44, NaN becomes the least int, 1.9 becomes 1, 'False' becomes True"),
    Row(23, "bounds at the extremes of every integer dtype",
        "a DiscreteArray, or a BoundedArray if `num_values` cannot hold the number",
        "5 of 5 raise"),
    Row(24, "10,000,000 steps", "at most 5 MiB more memory, no thread more, "
        "the 99th percentile of the durations drifts by less than 10 %",
        "(30,000 steps: the same)"),
    Row(25, "1,000 episodes through a proxy that delays, slices, resets, swallows, half-closes and "
        "corrupts; compared with what the server did",
        "each TimeStep is right; no wait outlives its deadline", ""),
    Row(26, "one client more than the server allows", "RESOURCE_EXHAUSTED within 1 s", "hangs"),
    Row(27, "500 clients are killed",
        "their worlds are free within 2 s, and their places can be taken", ""),
    Row(28, "gym-socket bridge: 100,000 changed frames, a length prefix of 4 GiB, ids with ':'",
        "an error or a disconnect; at most 8 MiB more memory; nothing is imported",
        "MemoryError; imports a module that the peer names (gym-socket-api)"),
    Row(29, "C bridge: 20 hostile libraries (null pointers, wrong dimensions, abort, endless "
        "EAGAIN, exceptions in callbacks)",
        "an error; a library that can end its process ends only a child process", ""),
    Row(30, "the compliance suite on 40 broken servers and on good ones",
        "at least 38 are noticed; no false alarm", ""),
    Row(31, "a server floods: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, unknown frames, empty or "
        "padded DATA, empty CONTINUATION, interim responses; in every state; threads and asyncio",
        "each wait ends within 0.2 s of its deadline; at most 4 MiB more memory", ""),
    Row(32, "fork with 0, 1 and 2 pending requests, with futures and coroutines; the child uses "
        "every method, exits, collects garbage; 200 times",
        "child: a clear error at once; parent: no wrong and no lost answer",
        "8 of 8 crashed or hung"),
    Row(33, "many small parts, to both ends: 64 broadcast observations or settings, 16 MB of empty "
        "Any, 126 MB of empty strings, 100,000 specs, 8 million entries nobody requested, 8 MB of "
        "error details, names and texts of 100 MB",
        "refused, or at most 4 times the message + 64 MiB of memory", ""),
    Row(34, "an idle AsyncConnection whose server talks; 400 that are opened and forgotten",
        "unusable from the first unasked message on; all are freed, with a ResourceWarning", ""),
    Row(35, "clients are killed while they wait in ResetWorld or in a lock-step Game, 100 times",
        "what they held is free within 2 s", ""),
    Row(36, "close() beside submit, send, deadlines and answers, 100,000 rounds, threads switched "
        "every microsecond", "never raises, never hangs, never blames the server", ""),
    Row(37, "5,000 real SIGINTs in close and poison with 900 requests pending",
        "no thread hangs; 0 stale answers", ""),
    Row(38, "a server acknowledges probes for 30 s of a step and then freezes",
        "noticed within 20 s", "never"),
    Row(39, "2,000 clients create worlds and vanish; at most 100 worlds are allowed",
        "the worlds end after the grace; later clients are served", ""),
    Row(40, "1,000 silent sockets, 256 idle streams, clients that never read, one byte a second",
        "an honest client is served within 1 s; the silent are disconnected", ""),
    Row(41, "100,000 steps that fail in the environment, alone and in rows of batches",
        "`Server.errors` and the log are bounded; tracebacks go to clients on this machine only",
        ""),
    Row(42, "hostile HTTP/2 clients: 100,000 rapid resets, floods, header bombs, window games, "
        "10,000 streams, malformed frames and header blocks of every kind in RFC 9113 and 7541",
        "GOAWAY or RST_STREAM with the right code; at most 16 MiB more memory; honest clients "
        "notice nothing", ""),
    Row(43, "callbacks of futures that wait for other requests, submit, close, raise, exit",
        "the connection goes on, or says why not", ""),
    Row(44, "addresses that only look like loopback (`*.localhost` that resolves elsewhere, a "
        "resolver named in the target)", "refused, by the address that was connected to", ""),
    Row(45, "a worker process of a server is killed 50 times under load",
        "its worlds end with a clear error, the others go on, it is replaced", ""),
    Row(46, "TLS: wrong host, expired, unknown authority, no client certificate, no ALPN, "
        "plaintext each way, rotation; tokens missing, wrong, right",
        "a clear error at once, which is not retried if it is final; no secret in any text",
        "waits without end, or an empty text"),
    Row(47, "recordings with one bit changed (every bit of three small files, one per "
        "compression), or cut off at any byte",
        "the same TimeSteps, or a RecordingError; never fewer in a file that is complete", ""),
    Row(48, "recordings that are bombs: 97 KB that unpack to gigabytes, millions of empty "
        "messages, names of 5,000 digits",
        "refused, or at most 4 times the largest chunk + 64 MiB of memory; RecordingError", ""),
    Row(49, "recordings that are renamed, replaced, removed or on a full disk while recorders use "
        "the path; three recorders on one path",
        "nothing is overwritten; when the cause is gone, the next recording works", ""),
    Row(50, "clients without a token: 2,000 connections a second without a byte; health checks "
        "with 14 KB of Huffman-coded metadata; ClientHellos on 100 sockets; one process and two",
        "99th percentile of an honest client's steps at most twice that without them + 1 ms; at "
        "most 16 MiB more memory; all descriptors are free afterwards", ""),
    Row(51, "SIGTERM to the process group, and to every process, of servers with workers, "
        "launched servers and bridges, under load",
        "environments are closed within the grace, the exit code says so, nothing is left", ""),
    Row(52, "a worker process of a server is stopped (SIGSTOP)",
        "noticed within 20 s, its worlds end with a clear error, new clients are served; stop() "
        "ends within its grace", ""),
    Row(53, "names, units, texts, properties and file names with escape sequences, C1 controls and "
        "bidirectional marks, in every command, table, log and traceback",
        "none reaches the terminal", ""),
    Row(54, "malformed greetings, requests and metadata that contain a secret; secrets among the "
        "arguments that Gymnasium, Minari, Stable-Baselines3 and loggers keep",
        "the secret is in no error, log, reply, repr, span, recording, spec, data set or pickled "
        "environment", ""),
    Row(55, "values that fail while they are converted, checked, copied, pickled, unpickled, "
        "stacked or sent, by an exception or a KeyboardInterrupt, where several environments "
        "answer together: streams, rows, rows in worker processes, players, Ray's actors; 200,000 "
        "steps, each place 5,000 times; every answer names its environment, step and action",
        "0 answers that are those to another step", ""),
    Row(56, "the server in one file, for trusted machines and networks, on the oldest and the "
        "newest Python: rows 21, 26, 33 and 40, malformed frames and bombs of row 42, 10^5 "
        "mutated frames; no floods", "as there; memory of one unread connection at most 24 MiB",
        ""),
    Row(57, "batch servers and their worker processes are killed 200 times while rows step; "
        "every observation names its environment, sequence and step",
        "no wrong row; lost rows are named and go on elsewhere", ""),
    Row(58, "batches of a million environments, and of fewer whose arrays exceed the limits",
        "refused before memory is taken; at most 16 MiB more memory at the server", ""),
    Row(59, "JSON that needs much memory, in options, infos, row errors and descriptions of "
        "spaces, at both ends and in the server in one file: one long text among thousands of "
        "short ones, void scalars, Boxes of 2^25 elements in 77 bytes; specs of 2^26 elements",
        "refused, or peak memory at most 4x the message + 64 MiB", ""),
    Row(60, "the threads that call one environment, from its constructor to close: steps of 0, 2, "
        "3 and 6 ms and of 2 s; alone, in streams, in a batch, in worker processes, in the main "
        "thread; both transports; the server in one file", "one", ""),
    Row(61, "misbehaving and unusual environments, in every remote setup: make, Remote-v0, "
        "streams, a batch, make of a batch, a served VectorEnv, Stable-Baselines3, PettingZoo, "
        "the server in one file, a recording and its replay, both transports, several processes",
        "the same values or the same error as in process, or a difference that a guide states",
        ""),
    Row(62, "a child forked by a client (a data loader) lives while environments, launched "
        "servers and recordings are closed, 50 times",
        "closed within 2 s; in the child an error within 2 s, or it works", "hangs"),
]  # fmt: skip

ROWS = {row.number: row for row in _ROWS}


def is_strict() -> bool:
    """Whether the bounds are the scorecard's own, without an allowance for a busy machine."""
    return os.environ.get(MODE) == FULL


def counts(gate: int, full: int, *, seconds: int = 3600) -> pytest.MarkDecorator:
    """Runs a test with a small `count` in the gate, and with the scorecard's under `soak`.

    Args:
      gate: the count in the gate.
      full: the count of the scorecard.
      seconds: the timeout of the full count.
    """
    whole = pytest.param(full, marks=[pytest.mark.soak, pytest.mark.timeout(seconds)])
    return pytest.mark.parametrize("count", [gate, whole])


@functools.cache
def files_of() -> dict[int, list[Path]]:
    """Returns each row that has tests, with the files that hold them."""
    found: dict[int, list[Path]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        marked = re.findall(r"pytest\.mark\.row\(([\d, ]+)\)", path.read_text())
        for number in sorted({int(each) for numbers in marked for each in numbers.split(",")}):
            found.setdefault(number, []).append(path)
    return found
