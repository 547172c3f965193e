"""Small pieces of text: counts, times in UTC, errors on one line, patterns, comments, SVG. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any


def plural(number: int, noun: str, several: str = "") -> str:
    """The number and its noun: "1 circuit", "2 circuits". `several` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def one_line(said: object) -> str:
    """The text of `said` on one line; for an error without a text, the name of its class."""
    return " ".join(str(said).split()) or (type(said).__name__ if isinstance(said, BaseException) else "")


def printable(text: str) -> str:
    """`text` on one line without control characters. Names and errors may come from services."""
    folded = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in folded)


def sentence_of(text: object) -> str:
    """`text` with a capital letter at its beginning."""
    sentence = str(text)
    return sentence[:1].upper() + sentence[1:]


def utc_text(moment: datetime | float | None) -> str:
    """A time in UTC to the second, for people: "2026-11-20 18:00:00 UTC"; "" for None."""
    if moment is None:
        return ""
    at = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def lasting(seconds: float) -> str:
    """A duration in the unit that fits: "35 ms", "1.2 s", "90 s", "5 min", "3 h", "12 d"."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{max(0.0, seconds):.2g} s"


def code_cell(text: str) -> str:
    """`text` as code in the cell of a Markdown table. Backticks and `|` are replaced."""
    return "`" + " ".join(text.replace("`", "'").replace("|", "¦").split()) + "`"


class Regex:
    """A regular expression that is compiled at its first use. Has the methods of `re.Pattern`.

    Most of the package's expressions describe errors and secrets, which most processes never meet. Compiling
    all of them took a quarter of the import time. An invalid expression raises at its first use.

    Example:
        >>> Regex(r"[a-z]+", re.I).sub("*", "ABC-1")
        '*-1'
    """

    search: Callable[..., re.Match[str] | None]
    match: Callable[..., re.Match[str] | None]
    fullmatch: Callable[[str], re.Match[str] | None]
    sub: Callable[[str | Callable[[re.Match[str]], str], str], str]
    split: Callable[[str], list[str]]
    finditer: Callable[[str], Iterator[re.Match[str]]]
    findall: Callable[[str], list[Any]]

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        """A method of the compiled expression. It is kept: the next call is one of `re.Pattern`."""
        if name.startswith("__"):  # pickling asks for such names before there is a pattern
            raise AttributeError(name)
        method = vars(self)[name] = getattr(re.compile(self.pattern, self.flags), name)
        return method


_COMMENTS = re.compile(r'"(?:[^"\\]+|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


def without_comments(text: str) -> str:
    """The text with spaces in place of `// ...` and `/* ... */`, so that lines and columns stay the same."""
    return _COMMENTS.sub(_blank, text) if "/*" in text or "//" in text else text


def _blank(found: re.Match[str]) -> str:
    part = found[0]
    return part if part.startswith('"') else re.sub(r"[^\n]", " ", part)


# Elements of an SVG picture.

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def number(value: float) -> str:
    """A coordinate: at most one decimal place."""
    return f"{round(value, 1):g}" if abs(value) < 100_000 else f"{value:.0f}"


def element(name: str, text: str | None = None, **attributes: str | float | None) -> str:
    """An element with its text. In attribute names `_` becomes `-`; attributes that are None are left out."""
    written = "".join(
        f' {key.replace("_", "-")}="{value if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    from html import escape

    return f"<{name}{written}/>" if text is None else f"<{name}{written}>{escape(text, quote=False)}</{name}>"


def rect(x: float, y: float, width: float, height: float, **attributes: str | float | None) -> str:
    return element("rect", None, x=x, y=y, width=width, height=height, **attributes)


def svg(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """A document with these parts on a white card."""
    size = f'width="{number(width)}" height="{number(height)}"'
    box = f'viewBox="0 0 {number(width)} {number(height)}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img" font-family="{FONT}">'
    card = rect(0.5, 0.5, width - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9")
    return "\n".join([start, element("title", title), card, *parts, "</svg>"])


def words(
    text: str, x: float, y: float, size: float, colour: str, *, bold: bool = False, middle: bool = False
) -> str:
    """A line of text that begins at `x`, or with `middle` is centred there."""
    weight, anchor = "bold" if bold else None, "middle" if middle else None
    return element(
        "text", text, x=x, y=y, font_size=size, fill=colour, font_weight=weight, text_anchor=anchor
    )
