"""Compliance checks of the dm_env_rpc protocol for any server, in any language.

Run them by `dm-env-rpc check HOST:PORT`, by
`pytest --pyargs dm_env_rpc_client.compliance --dm-env-rpc-address HOST:PORT`, or by `run`. The
guide is `docs/how-to/check-a-server.md`.
"""

# Read `trial.py` first: what a check works with. A check talks to the server over a raw stream
# (`probe.py`), because a Connection refuses the invalid requests that the checks send.
# `runner.py` runs the checks of `checks/foundations.py` first; what they find out (`outcome.py`),
# and how many clients the server takes at once (`clients_at_once.py`), decides how the others
# proceed, and which of them are skipped.
#
# The names are imported when they are first used: the pytest plugin reads `options.py`, and must
# not import more than that.

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
