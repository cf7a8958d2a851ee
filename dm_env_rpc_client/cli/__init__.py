"""The command `dm-env-rpc`; see `dm-env-rpc --help`.

Read `app.py` first: it adds the commands. Each command has a file of its own (`run`, `serve`,
`inspect`, `play`, `properties`, `check`, `health`, `bench`, `record` with `replay`, `export`), and
`playing/` is the application of `play`.
`entry.py` starts the command, `group.py` and `failures.py` turn errors into lines and exit codes,
`arguments.py` has the arguments that several commands share. May import every room below it.

## The commands

| command | what it does |
| --- | --- |
| `dm-env-rpc run [ADDRESS]` | runs episodes with a random policy, or one of yours |
| `dm-env-rpc serve WHAT` | serves an environment |
| `dm-env-rpc inspect ADDRESS` | shows actions and observations; `inspect FILE` a recording |
| `dm-env-rpc check ADDRESS` | checks that a server follows the protocol |
| `dm-env-rpc health ADDRESS` | asks a server whether it is serving |
| `dm-env-rpc bench ADDRESS` | measures steps, and where their time goes |
| `dm-env-rpc properties list` / `get` / `set` | reads and writes properties |
| `dm-env-rpc play ADDRESS` | plays an environment in the terminal |
| `dm-env-rpc record` / `replay` / `export` | records, serves a recording, exports its episodes |

Every command takes a server to start in place of an address, which ends with the command:
`process:COMMAND`, `docker:IMAGE` or `python:MODULE:NAME`, as `dm_env_rpc_client.launch` describes.
`run` without an address starts Catch. `serve` listens on `localhost:50051` unless
`--address` says otherwise:

```sh
dm-env-rpc run python:my_module:Countdown --create start=5
dm-env-rpc check "process:./engine --port={port}"
dm-env-rpc serve catch
dm-env-rpc serve my_module:Countdown --create start=5
dm-env-rpc serve gymnasium://CartPole-v1      # or dm_control://cartpole/swingup, bsuite://catch/0
dm-env-rpc serve pettingzoo://butterfly/pistonball_v6
dm-env-rpc serve --c-library ./libengine.so:engine_connect
```

It makes the environment once, to see that it can, before it says that it serves; `--no-try` leaves
that out, for factories with settings that only clients send. On a terminal it shows clients,
worlds, agents, steps/s and the last refusals and failures. Elsewhere it logs them to stderr, with
`--json` as JSON lines, and with `--verbose` all requests but steps, too:

```sh
dm-env-rpc serve catch --json 2> log.jsonl
dm-env-rpc serve catch --verbose --idle-seconds 5
```

In a game, `run` takes one player's part. While it waits for others it says on stderr who is missing
and how they join: `--world` with the name of the world. `--timeout` is how long it waits. Episodes
that `--max-steps` cuts off do not count in the mean return and length.

`play` needs the extra `play`. Keys come from the action spec: digits and arrows choose one of a
few values, which takes a step at once; + and - change other numbers; Tab goes to the next action.
`--keys a=0` sets keys of your own, and `--rate 10` plays in real time:

```sh
dm-env-rpc play localhost:50051
dm-env-rpc play localhost:50051 --keys w=throttle:+=0.1 --keys s=throttle:-=0.1
```

Observations that are images or boards are pictures: real ones in terminals that know sixels or
kitty's graphics protocol, and quadrant characters elsewhere, which a larger terminal or a smaller
font makes sharper. If no observation is an image of at least 32x32 pixels, the picture is what the
environment renders: a served Gymnasium environment with the render mode `rgb_array` sends it with
each step. On a game for several players `play` says what it waits for, too.

`bench` shows percentiles of a step and of its phases (encode, send, wait, decode), an estimate of
what part of the wait is the server's, and steps/s with 1 to 64 pending steps:

```sh
dm-env-rpc bench localhost:50051
dm-env-rpc bench localhost:50051 --seconds 30 --transport grpc --json
```

`health` asks any gRPC server that has the health service, for scripts and orchestrators: exit code
0 says that it serves. It waits up to `--timeout` for a server that does not listen yet.
`dm_env_rpc_client.server.deployment` has a Dockerfile and a manifest for Kubernetes with it:

```sh
dm-env-rpc health localhost:50051 --timeout 60
```

`record` stands between clients and a server and writes what they say to a file, `replay` serves
such a file without the environment, and `export` writes its episodes for other programs; see
`dm_env_rpc_client.recording`:

```sh
dm-env-rpc record run.mcap --upstream localhost:50051 --address localhost:50052
dm-env-rpc inspect run.mcap
dm-env-rpc replay run.mcap --address localhost:50051
```

For a server with TLS, `--tls-ca` names the PEM file of the authority to trust (`system`: those that
the machine trusts), `--tls-cert` and `--tls-key` the client's own certificate, and `--token-file`
the file with the token that the server requires. On `serve` they are the server's: its certificate,
the authority of the clients that it takes, and the token that it requires. The variables
`DM_ENV_RPC_TLS_CA`, `DM_ENV_RPC_TLS_CERT`, `DM_ENV_RPC_TLS_KEY` and `DM_ENV_RPC_TOKEN_FILE` stand
for flags that are not given:

```sh
dm-env-rpc serve catch --tls-cert server.crt --tls-key server.key --token-file token
dm-env-rpc inspect localhost:50051 --tls-ca ca.crt --token-file token
```

`DM_ENV_RPC_LOG=debug` in the environment has a command print what the package logs, from that level
on; see `dm_env_rpc_client.adaptors.opentelemetry`. `--json` prints results for programs. An error
is one line; `dm-env-rpc --help` lists the exit codes. `dm-env-rpc --install-completion` teaches
your shell to complete commands.
"""
