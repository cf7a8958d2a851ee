"""A KeyboardInterrupt in front of a chosen line."""

from __future__ import annotations

import sys
from typing import Any


class Interrupt:
    """Raises KeyboardInterrupt in front of a line of some functions, counted from 1."""

    def __init__(self, line: int, *functions: Any):
        self.left = line
        self._codes = {function.__code__ for function in functions}

    def __enter__(self) -> Interrupt:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: Any, event: str, argument: Any) -> Any:
        return self._trace if frame.f_code in self._codes else None

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace
