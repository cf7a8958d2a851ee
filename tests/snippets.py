"""The code of a page: `python -m tests.snippets docs/tutorials/ppo.md` runs it.

All snippets of a page are one program. What it writes goes to the current folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def snippets(text: str) -> list[str]:
    """Returns the Python snippets of a Markdown page, in order."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


if __name__ == "__main__":
    exec(compile("\n".join(snippets(Path(sys.argv[1]).read_text())), sys.argv[1], "exec"))
