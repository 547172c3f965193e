"""Ctrl-C at a chosen line of the package, as a signal would strike there."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import prefect_resilience

ROOT = str(Path(prefect_resilience.__file__).parent)
PASSES = 2
"""How many passes of each line count."""

# A tracer without Python code: a signal that it raises is handled in the traced frame, and only where the
# interpreter looks for signals. So `with lock:` is left as whole as after a real Ctrl-C.
_strike = ctypes.PyDLL(None).PyErr_SetInterrupt
_strike.argtypes = [ctypes.py_object] * 3
_strike.restype = None


class CtrlC:
    """Strikes as the call passes its `at`-th line. `line`: where that was; None if it has fewer lines."""

    def __init__(self, at: int) -> None:
        self.line: str | None = None
        self._left = at
        self._again = False
        self._passes: Counter[tuple[str, int]] = Counter()

    def during(self, call: Callable[[], Any]) -> BaseException | None:
        """Make the call; returns its error."""
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            sys.settrace(self._enter)
            call()
        except BaseException as error:
            return error.with_traceback(None)
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
        return None

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename == __file__:
            self._again = True  # in the tracer, which users do not have: strike at the next line
            return
        sys.settrace(None)
        raise KeyboardInterrupt

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        return _strike if self._again else self._pass

    def _pass(self, frame: FrameType, event: str, _: Any) -> Any:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if self._again:
            self._again = False
            return _strike
        if event == "line" and self._passes[place] < PASSES:
            self._passes[place] += 1
            self._left -= 1
            if self._left == 0:
                self.line = f"{place[0].removeprefix(ROOT)}:{place[1]} {frame.f_code.co_name}"
                return _strike
        return self._pass
