"""A regular expression that is compiled at its first use.

Most of the package's expressions describe errors and secrets, which most processes never meet. Compiling all
of them took a quarter of the import time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any


class Regex:
    """Has the methods of `re.Pattern`. An invalid expression raises at its first use.

    Example:
        >>> Regex(r"[a-z]+", re.I).sub("*", "ABC-1")
        '*-1'
    """

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self.flags = flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self.flags)

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self.compiled.search(text, start)

    def match(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self.compiled.match(text, start)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self.compiled.fullmatch(text)

    def sub(self, new: str | Callable[[re.Match[str]], str], text: str) -> str:
        return self.compiled.sub(new, text)

    def split(self, text: str) -> list[str]:
        return self.compiled.split(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self.compiled.finditer(text)

    def findall(self, text: str) -> list[Any]:
        return self.compiled.findall(text)
