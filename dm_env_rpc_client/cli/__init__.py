"""The command `dm-env-rpc`; see `dm-env-rpc --help`.

Read `app.py` first: it adds the commands. Each command has a file of its own (`run`, `serve`,
`inspect`, `play`, `properties`, `check`, `bench`), and `playing/` is the terminal of `play`.
`entry.py` starts the command, `group.py` and `failures.py` turn errors into lines and exit codes,
`arguments.py` has the arguments that several commands share. May import every room below it.

## The commands

| command | what it does |
| --- | --- |
| `dm-env-rpc run [ADDRESS]` | runs episodes with a random policy, or one of yours |
| `dm-env-rpc serve WHAT` | serves an environment |
| `dm-env-rpc inspect ADDRESS` | shows actions and observations |
| `dm-env-rpc check ADDRESS` | checks that a server follows the protocol |
| `dm-env-rpc bench ADDRESS` | measures steps, and where their time goes |
| `dm-env-rpc properties list` / `get` / `set` | reads and writes properties |
| `dm-env-rpc play ADDRESS` | plays an environment in the terminal |

`run` without an address serves Catch for itself. `serve` listens on `localhost:50051` unless
`--address` says otherwise:

```sh
dm-env-rpc serve catch
dm-env-rpc serve my_module:Countdown --create start=5
dm-env-rpc serve gymnasium://CartPole-v1
dm-env-rpc serve --c-library ./libengine.so:engine_connect
```

`play` shows frames in colour and makes keys from the action spec; `--keys a=0` sets your own, and
`--rate 10` plays in real time:

```sh
dm-env-rpc play localhost:50051
```

`bench` shows percentiles of a step and of its phases (encode, send, wait, decode), an estimate of
what part of the wait is the server's, and steps/s with 1 to 64 pending steps:

```sh
dm-env-rpc bench localhost:50051
dm-env-rpc bench localhost:50051 --seconds 30 --transport grpc --json
```

`--json` prints results for programs. An error is one line; `dm-env-rpc --help` lists the exit
codes. `dm-env-rpc --install-completion` teaches your shell to complete commands.
"""
