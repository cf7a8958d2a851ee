"""What was tried to break the package, and what was seen. This module holds no code.

`reliability.md` is written by the scorecard's command; it may import nothing.

## The scorecard

Each row of the table is something that goes wrong between a client and a server: processes that
are killed or frozen, signals, forks, cancelled coroutines, answers that do not fit, floods, bombs,
bad networks. "Has to be seen" is the bound that the tests hold the package to. Rows that concern
the wire are tried over both transports.

"dm-env-rpc 1.1.7" is what the PyPI package of that name did when the same was tried on it; figures
in brackets were taken from elsewhere. Where the column is empty, it has nothing of the kind, or it
was not tried.

"Seen here" is what the tests of the row recorded in the last run: counts are added up over the
tests and transports, times and memory are the worst of all.

## Run it again

The tests are in the source distribution and in the repository, in `tests/reliability` and, with the
same markers, in the folders of what they are about. From a clone:

```sh
python -m tests.reliability                   # at these counts; takes 90 minutes
python -m tests.reliability --rows 1,2,31-34  # some rows
python -m tests.reliability --quick           # at small counts
python -m tests.reliability --json run.json --markdown run.md
python -m tests.fuzz tensors --seconds 60     # envelopes, http2, gym-socket
```

The command ends with 1 if a row fails or has no test yet; such rows are in the table, too. Nothing
else should run beside it: the bounds of time are those of an idle machine. The small counts, with
an allowance for a busy machine, are part of every run of the tests.

## Try your own server or client

`FaultProxy` of `dm_env_rpc_client.testing` is the bad network of row 25; it stands between any
client and any server. `dm-env-rpc check`, the suite of row 30, tells where a server breaks the
protocol.

## Facts behind the rows

- grpcio: `grpc.keepalive_time_ms` and `grpc.keepalive_timeout_ms` of 10 s and 5 s notice a frozen
  peer only after 70 s, because `grpc.http2.ping_timeout_ms` is 60 s by default; with 5 s it takes
  15 s. gRPC servers end a connection (GOAWAY, too_many_pings) if PINGs come too often.
- grpcio sends two PINGs while a request takes long, and then one a minute, because servers end the
  connection otherwise; it has no option for probes that servers do not count. So over the transport
  `grpc`, a server that freezes in the middle of a long step is noticed within 80 s. The transport
  `http2` probes without PINGs, in a step of any length, and notices it within 20 s (row 38).
- grpcio: local credentials over TCP are plaintext. Two servers can listen on one port, unless
  `grpc.so_reuseport` is 0. A request iterator that waits without end keeps the interpreter from
  exiting.
- grpcio decompresses a message up to the limit of its size before it refuses it; the transport
  `http2` does not decompress (row 21).
- Answers carry no id: only their order tells to which request they belong, so a client that is in
  doubt gives up the connection (rows 6 to 12).
- What small parts of a message ask for adds up, so budgets are for messages, not for tensors
  (rows 21 and 33).
- A forked child has the sockets of its parent; both see any use of them (rows 16 and 32).
- gym-socket clients name what is to be opened: ids are those that the operator allows, and nothing
  that a peer names is imported (row 28).
- A C library can end its process: with `isolated=True` that is a child process (row 29).

## The last run

Each row was a run of its own, and other programs had the two processors as well: the load was 5 to
27. So durations are upper bounds. In rows 21, 31 and 33, the time for which a thread was ready to
run and other programs had the processor is not counted. Rows 24 and 42 compare durations within a
run, which says nothing on such a machine; they are left out.

.. include:: reliability.md
"""
