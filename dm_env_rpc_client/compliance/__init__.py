"""Compliance checks of the dm_env_rpc protocol for any server, in any language.

Run them by `dm-env-rpc check HOST:PORT`, by
`pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address HOST:PORT`, or by `run`.

Read `trial.py` first: what a check works with. A check talks to the server over a raw stream
(`probe.py`), because a Connection refuses the invalid requests that the checks send. `runner.py`
runs the checks of `checks/foundations.py` first; what they find out (`facts.py`) decides how the
others proceed, and which of them are skipped.

The names are imported when they are first used: the pytest plugin reads `options.py`, and must
not import more than that.

## Checking a server

Each check cites its clause of the protocol. What it finds says what was sent, what came back and
what was expected, and has one of two levels:

- **failed**: a client that follows the documents gets a wrong answer, or none.
- **warned**: the documents demand or advise otherwise, and a client that follows them does not
  notice. Most of these checks send invalid requests, which the server should refuse; the documents
  leave the validity of requests to the client ("Streaming" in the protocol overview). Others are
  about what a server may do, but need not, such as going on after an error ("Errors").

The reason of a level stands in the docstring of the check, and that of a warning in its result. The
command exits with code 1 if a check failed, and with 0 if there are warnings alone; `--strict`
makes every warning a failure. Under pytest a warning is a `ComplianceWarning`.

A finding is reported once. If errors end the stream of a server, which is legal, one check says so,
those that need the stream afterwards are skipped for that reason, and the others use a new
connection after each error. If no world can be created or joined, nothing else is checked; if the
server is gone, the finding names the last request. A check of something that the server does not
offer is skipped, too. The number of connections that the server accepts is found out, unless
`--connections` says it; checks that need more are skipped.

In the shell:

```sh
dm-env-rpc check localhost:50051
dm-env-rpc check localhost:50051 --invalid-create rows=-1 --reset rows=6 --one-agent --json
```

Under pytest, a test for each check:

```sh
pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address localhost:50051
```

In Python:

```python
from dm_env_rpc_client.compliance import Options, Outcome, run
from dm_env_rpc_client.server import Catch, serve

with serve(Catch) as server:
    results = list(run(server.address, Options(invalid_create_settings={"rows": -1})))
print([result.name for result in results if result.outcome is Outcome.FAILED])  # []
```

If the server needs settings, has one world only, waits for several agents, or takes only some
actions in some states, say so:
`dm-env-rpc check --help` lists the options, and `Options` has the same ones.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
