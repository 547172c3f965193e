"""Elements of an SVG picture, as text."""

from __future__ import annotations

from xml.sax.saxutils import escape

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
    return f"<{name}{written}/>" if text is None else f"<{name}{written}>{escape(text)}</{name}>"


def rect(x: float, y: float, width: float, height: float, **attributes: str | float | None) -> str:
    return element("rect", None, x=x, y=y, width=width, height=height, **attributes)


def words(
    text: str, x: float, y: float, size: float, colour: str, *, bold: bool = False, middle: bool = False
) -> str:
    """A line of text that begins at `x`, or with `middle` is centred there."""
    weight, anchor = "bold" if bold else None, "middle" if middle else None
    return element(
        "text", text, x=x, y=y, font_size=size, fill=colour, font_weight=weight, text_anchor=anchor
    )
