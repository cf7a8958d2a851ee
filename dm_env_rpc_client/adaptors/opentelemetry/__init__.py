"""Metrics and traces of clients and servers, through OpenTelemetry; and what is logged.

Read `instrumentor.py` first: it switches reports on, which `protocol/telemetry.py` defines.
`instruments.py` holds the metrics, `reports.py` what is told of each request. May import
`protocol`. With the extra `otel`, which is the API alone; the SDK and its exporters are yours.

## Switching it on

```python
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import dm_env_rpc_client
from dm_env_rpc_client.adaptors.opentelemetry import DmEnvRpcInstrumentor
from dm_env_rpc_client.server import Catch, serve

reader = InMemoryMetricReader()  # in a program one of an exporter
DmEnvRpcInstrumentor().instrument(meter_provider=MeterProvider([reader]))

with serve(Catch) as server, dm_env_rpc_client.make(server.address) as env:
    env.reset()
    for _ in range(8):
        env.step({"paddle": 1})

data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
metrics = {metric.name: metric.data.data_points for metric in data.metrics}
for point in metrics["dm_env_rpc.server.requests"]:
    print(point.attributes["dm_env_rpc.request"], point.value)  # step 9
DmEnvRpcInstrumentor().uninstrument()
```

Without arguments, the providers are those of the process. Connections and servers that are made
afterwards report, in whatever way they are made; those that exist already do not. Without
`instrument` they are made of classes that report nothing, so a step costs nothing more. With it,
each request costs one measurement of OpenTelemetry, tens of microseconds in Python.

`opentelemetry-instrument` (of `opentelemetry-distro`) needs no code: it finds this package by its
entry point, configures the SDK by variables, and works for commands, too:

```text
OTEL_SERVICE_NAME=engine opentelemetry-instrument dm-env-rpc serve my_envs:Walker --processes 4
```

The workers of `serve(..., processes=N)` are processes of their own for OpenTelemetry, too: each
configures an SDK and exports for itself. Under `opentelemetry-instrument` they do. A program that
calls `instrument` itself does so, and sets up the SDK, in the module of its environment, which each
worker imports.

## Metrics

`END` is `client` or `server`:

| name | unit | what | by |
| --- | --- | --- | --- |
| `dm_env_rpc.END.requests` | | requests that began | kind |
| `dm_env_rpc.END.request.duration` | s | the time until the answer | kind, status, error |
| `dm_env_rpc.END.errors` | | requests and attempts to connect that failed | kind, error, class |
| `dm_env_rpc.END.sent`, `.received` | By | sizes of messages, without framing | |
| `dm_env_rpc.END.connections` | | connections that are open | |
| `dm_env_rpc.server.worlds` | | worlds that exist | |
| `dm_env_rpc.client.restarts` | | environments that were started again | error |

A client measures from the writing of a request until its answer was read, before it is decoded; a
server from the arrival until there is the answer.

Attributes follow the conventions of OpenTelemetry for [gRPC][]. All requests of a connection are
messages of one call, `rpc.method` = `dm_env_rpc.v1.Environment/Process`, so their kind is an
attribute of our own: `dm_env_rpc.request`, such as `step`, `create_world`, `extension`; `unknown`
if a server could not read it, and `connect` for an attempt to connect, such as one that a server
refused for want of the right token. A client adds
`server.address` and `server.port`. `rpc.response.status_code` is the status in the answer, such as
`OK` or `INVALID_ARGUMENT`. `error.type` is that status, or, if there was no answer, the class of
the error, such as `dm_env_rpc_client.errors.DeadlineExceededError`; `exception.type` is the class
of the exception, such as the one that an environment raised. As in those conventions, a duration of
a server has an `error.type` if the server failed, not if it refused what a client sent.

## Traces

| span | kind | when |
| --- | --- | --- |
| `dm_env_rpc.connect` | client | a connection is opened |
| `dm_env_rpc.create_world` and so on | client, server | a request that is not a step |
| `dm_env_rpc.step` | client, server | a step, if they are asked for |
| `dm_env_rpc.reset_environment` | internal | `reset` of an environment: its Reset and first step |

`close` of an environment is its `leave_world` and `destroy_world`. A span for each step costs more
than many a step: `instrument(step_spans=True)`, or `DM_ENV_RPC_STEP_SPANS=1` in the environment,
asks for them.

Spans of a client belong to the span of the program that is current, or else to the `connect` of
their connection. The context travels as metadata of the call (`traceparent`), once for each
connection: the protocol has no place for it in a request. So spans of a server are children of the
client's `connect`; for environments that share a connection, as in `RemoteVectorEnv`, of the
span in which they were made. Metadata of the same name that a program passes itself is left as it
is. Spans that an environment makes belong to the request that it answers, if that has a span.

## The log

The package logs below `dm_env_rpc_client`, most modules under their own name. It has a NullHandler:
a program that wants the log configures `logging`. Nothing is logged for a step that succeeds, and
no text has a token, a key or a value of metadata.

| level | logger | what |
| --- | --- | --- |
| ERROR | `server` | exceptions of environments and of the server, with their tracebacks |
| WARNING | any | what went wrong and was handled, such as a world that could not be left |
| INFO | `server.hosting` | where a server listens, and that it stopped |
| INFO | `server` | requests and clients that were refused; steps that were, at DEBUG |
| INFO | `server.clients` | who connects and disconnects |
| INFO | `server.world_registry` | worlds that nobody used any more |
| INFO | `client` | a connection that became unusable, and why |
| INFO | `transports` | clients that are dropped because they are silent |
| DEBUG | `client` | connections that were opened and closed |
| DEBUG | `server` | requests except steps |
| DEBUG | `server.world_registry` | worlds that were created and destroyed |
| DEBUG | `transports` | clients that broke off |

Repeated lines of a server are limited. Commands print warnings and errors; `DM_ENV_RPC_LOG=info` or
`=debug` in the environment prints more, and `dm-env-rpc serve --verbose` all requests but steps.

[gRPC]: https://opentelemetry.io/docs/specs/semconv/rpc/grpc/
"""

from dm_env_rpc_client.adaptors.opentelemetry.instrumentor import DmEnvRpcInstrumentor

__all__ = ["DmEnvRpcInstrumentor"]
