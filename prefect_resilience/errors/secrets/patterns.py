"""The rules for the formats of secrets, from `forms.txt`. `redact` applies them in this order.

A rule runs only when one of its `triggers` is in the text or in its lower-case form, so that clean text
costs a few substring searches.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.secrets.forms import FORMS, MASK, piece
from prefect_resilience.errors.secrets.pairs import mask_pairs


class SecretRule(NamedTuple):
    """How to mask one sort of secret; skipped when none of the triggers is in the text."""

    triggers: tuple[str, ...]
    mask: Callable[[str], str]


def mask_secret(match: re.Match[str]) -> str:
    """The match with `***` in place of its group `secret`, or of the whole match if it has no such group."""
    start, end = match.span("secret" if "secret" in match.re.groupindex else 0)
    if start >= end:  # an empty match would put masks between all letters
        return match[0]
    return match.string[match.start() : start] + MASK + match.string[end : match.end()]


def _mask_block(match: re.Match[str]) -> str:
    """Replace the lines of a block scalar by one masked line with the same indent."""
    depth = re.match(r"(?:\s|\\+[rn])*?([ \t]*)(?=[^ \t\\\r\n]|\Z)", match["body"])
    return f"{match['indent']}{match['head']}{depth[1] if depth else ''}{MASK}{match['end'] or ''}"


_MORE_OF_IT = Regex(r"\](?=\\{1,8}n\(Background)")
_NAME = Regex(r"'\w{1,200}'\s?:")
_LITERAL = Regex(r"""'(?:[^'\\]|\\.){0,4000}'(?!\s?:)|"(?:[^"\\]|\\.){0,4000}"(?!\s?:)""")


def names_a_secret(statement: str) -> bool:
    """Whether a statement of SQL names a column or a parameter such as `password`."""
    return piece("KEY").search(statement) is not None


def _mask_statement(match: re.Match[str]) -> str:
    """Mask all parameters of a statement that names a secret column. It is unknown which of them is the
    secret, and where a parameter with a quote in it ends."""
    values = match["values"]
    if not names_a_secret(match[0]) or not any(map(str.isalnum, _NAME.sub("", values))):
        return match[0]
    quoted = _MORE_OF_IT.search(values)
    end = quoted.start() if quoted else values.rfind("]")
    return match[0].removesuffix(values) + MASK + (values[end:] if end >= 0 else "")


def _mask_insert(match: re.Match[str]) -> str:
    return match["into"] + _LITERAL.sub(f"'{MASK}'", match["values"])


def _mask_basic(match: re.Match[str]) -> str:
    """Mask Basic credentials: base64 of `user:password`. A word of prose does not decode to that."""
    try:
        plain = base64.b64decode(match["secret"], validate=True)
    except (binascii.Error, ValueError):
        return match[0]
    return mask_secret(match) if b":" in plain and plain.isascii() else match[0]


_HOW: dict[str, Callable[[re.Match[str]], str]] = {
    "any": mask_secret,
    "cased": mask_secret,
    "basic": _mask_basic,
    "block": _mask_block,
    "insert": _mask_insert,
    "statement": _mask_statement,
}
RULES: tuple[SecretRule, ...] = tuple(
    SecretRule(
        triggers,
        mask_pairs
        if how == "pairs"
        else partial(Regex(regex, 0 if how == "cased" else re.IGNORECASE).sub, _HOW[how]),
    )
    for triggers, how, regex in FORMS
)
