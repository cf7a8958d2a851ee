"""Checks whether a server, in any language, complies with the dm_env_rpc protocol.

Run the checks with `dm-env-rpc check HOST:PORT`, with `pytest --pyargs
dm_env_rpc_client.compliance --dm-env-rpc-address HOST:PORT`, or by calling `run`. The guide is
`docs/how-to/check-a-server.md`.
"""

# Read `trial.py` first: what a check works with. A check talks to the server over a raw stream
# (`probe.py`), because a Connection refuses the invalid requests that the checks send.
# `runner.py` runs the checks of `checks/foundations.py` first. Their facts (`outcome.py`) and the
# number of clients that the server accepts at once (`clients_at_once.py`) decide how the other
# checks proceed, and which of them are skipped.
#
# Names are imported on first use: the pytest plugin reads `options.py` and must not import more.

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
