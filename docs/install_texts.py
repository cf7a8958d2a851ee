"""How pages say to install the package: from a clone, or from a package index.

Both texts stand in a page, the second in a comment, so that the page itself says what works in a
clone. The site has the one that `PUBLISHED` in `dm_env_rpc_client/version.py` decides for:

    <!-- clone -->
    pip install .
    <!-- index
    pip install dm-env-rpc-client
    -->
"""

from __future__ import annotations

import re

__all__ = ["installing"]

_BOTH = re.compile(r"<!-- clone -->\n(.*?)<!-- index\n(.*?)-->\n", re.DOTALL)


def installing(page: str, published: bool) -> str:
    """Returns a page with one of the two texts.

    Args:
      page: Markdown.
      published: whether a package index has the package.
    """
    return _BOTH.sub(lambda both: both[2 if published else 1], page)
