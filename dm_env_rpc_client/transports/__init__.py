"""Bytes between processes: whole messages, in order, over HTTP/2 or grpcio.

A transport does not know the contents of messages. `http2/` is this package's own transport, a
socket read by the waiting thread; `grpc/` is grpcio. Each has both ends, a client's and a
server's. This is the only room that imports grpc or socket (with the exceptions that
`tests/test_layering.py` lists). It may import `errors`.

Read `streams.py` first, the interface of both transports on a client, then `server_streams.py`,
that on a server. `endpoint.py` says which server to connect to and how; `opening.py` selects the
transport of a client, `listeners.py` that of a server. `waiting.py` is how a program waits for a
server, so that a signal ends the wait; `locks.py` is how a lock is tried, so that a signal does not
leave it locked.

## Performance

`python -m tests.benchmarks`, in a clone, measures this package over both transports, dm-env-rpc
1.1.7, grpcio without any parsing, a bare C++ gRPC client and plain TCP, in turns, against one C++
server on loopback, and compares the ratios with their targets. One run on a machine with two cores,
medians in microseconds per step:

| observation | dm-env-rpc 1.1.7 | http2 | grpc | bare C++ gRPC | plain TCP |
| --- | --- | --- | --- | --- | --- |
| float32 scalar | 428 | 157 | 362 | 130 | 18 |
| float64 [256] | 500 | 190 | 391 | 142 | 20 |
| int32 84x84 | 954 | 226 | 509 | 210 | 80 |
| uint8 84x84x4 | 482 | 172 | 383 | 147 | 21 |
| float32 84x84x4 | 1,608 | 126 | 388 | 207 | 74 |
| uint8 1080x1920x3 | 11,603 | 1,672 | 5,010 | 2,797 | 1,906 |

With 16 steps pending, as `unroll` sends them, a step with a float32 scalar takes 28 microseconds
over http2 and one with float32 84x84x4 takes 40; dm-env-rpc has to wait for each answer. Both
columns of the picture are of the same run, each chart with a scale of its own:

![A step in microseconds, by observation, of six contenders](../../notebooks/pictures/benchmark.png)

What a step takes with a server of this package is [below](#choosing-a-transport).

Where the time goes, and what was done about it: a thread that waits for an answer reads the socket
itself, so that no other thread is woken; an array is read from the socket into the memory that the
caller gets; a Step is written and read as bytes, without messages in between.

Before a thread sleeps until input comes, it looks for it for up to half a millisecond, at a client
and at a server of this package (`http2/busy_wait.py`): to sleep and to be woken takes longer than a
cheap step. So `top` shows a processor in use at each end while steps follow one another that
quickly. Where input takes longer, other programs want the processor, or other threads of the
process work for sockets of this package, a thread sleeps at once.

To measure a server of yours, `dm-env-rpc bench localhost:50051`.

## Choosing a transport

`transport="http2"` is this package's own, for `host:port` and `unix:` addresses, with plaintext, a
`Tls` or an `ssl.SSLContext`. `transport="grpc"` is grpcio: other targets, proxies, grpcio's own
credentials. `"auto"`, the default, takes http2 if it can express the address and the credentials:

```python
import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, serve

with serve(Catch) as server:
    for transport in ("http2", "grpc"):
        with dm_env_rpc_client.make(server.address, transport=transport) as env:
            print(transport, env.reset().step_type.name)  # FIRST
```

`serve(transport=...)` takes the same names. The http2 server is for Linux: one thread reads a
request, has it answered and writes the answer, and other threads take part only for streams whose
answers take long or wait for others. Clients on either transport, and those of other gRPC
libraries, cannot tell which one serves them.

One run of `python -m tests.benchmarks --only served --only served-together` on a machine with two
cores, microseconds for a step of a cheap Python environment in another process; the last three are
for each of 16 environments, of which one server process has all but AsyncVectorEnv's:

| | float32 [1] | uint8 84x84x4 | float32 84x84x4 |
| --- | --- | --- | --- |
| `make` and `serve` | 64 | 107 | 74 |
| the same over a unix socket | 53 | 85 | 67 |
| Gymnasium's AsyncVectorEnv | 176 | 192 | 162 |
| a multiprocessing Pipe | 102 | 131 | 129 |
| dm-env-rpc 1.1.7, both ends | 688 | 761 | 2,916 |
| `BatchedEnvironment` | 19 | 30 | 63 |
| `RemoteVectorEnv` | 19 | 31 | 66 |
| AsyncVectorEnv, 16 processes | 70 | 75 | 96 |

Both probe the server while they wait: a machine that is frozen or unreachable is noticed within 20
seconds, also if there is no `request_timeout`. With `"grpc"`, which probes with PINGs, one that
freezes after the first 20 seconds of a step is noticed within 80 seconds: gRPC servers end
connections for a third PING in one step, so grpcio sends it a minute later.
"""

import os

# With its own fork handlers, on by default, grpcio crashed 4 of 6 forked children of a process that
# used grpc.aio, and none of 6 without them (tests/reliability/test_fork.py). It reads the variable
# when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
