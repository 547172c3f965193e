"""The rules for the formats of secrets, from `forms.txt`. `redact` applies them in this order.

A rule runs only when one of its `triggers` is in the text or in its lower-case form, so that clean text
costs a few substring searches.

A value under the name of a secret (`password=...`, `"api_key": "..."`, `--token ...`) is not masked when it
has no content (`null`, `missing`), when it is a type (`password: str`), and when it is source code that names
the origin of the secret (`password=config.password`).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from prefect_resilience.base.regexes import Regex

MASK = "***"


class Forms(NamedTuple):
    """What `forms.txt` says. `pieces`: expressions by their names. `rows`: for each form its triggers, the
    word for how to mask, and its expression."""

    pieces: dict[str, str]
    rows: list[tuple[tuple[str, ...], str, str]]


@cache
def forms() -> Forms:
    """The forms of secrets, read when the first text is masked."""
    read = Forms({}, [])
    text = Path(__file__).with_name("forms.txt").read_text("utf-8")
    for line in re.sub(r"\n  ", "", text).splitlines():
        if not line or line.startswith("#"):
            continue
        parts = re.fullmatch(r"(\[.*?\]|\w+) (=|[a-z]+) ?(.*)", line)
        assert parts is not None, line
        regex = re.sub(r"\{([A-Z_]+)\}", lambda name: read.pieces[name[1]], parts[3])
        if parts[2] == "=":
            read.pieces[parts[1]] = regex
        else:
            read.rows.append((tuple(json.loads(parts[1])), parts[2], regex))
    return read


@cache
def piece(name: str) -> re.Pattern[str]:
    """A piece as an expression for which small and capital letters are the same."""
    return re.compile(forms().pieces[name], re.IGNORECASE)


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


# -- secrets by the name of their key


def mask_pairs(text: str) -> str:
    """The text with the values masked of all keys that are named like a secret."""
    parts: list[str] = []
    done = position = 0
    while (match := piece("PAIR").search(text, position)) is not None:
        if not _is_secret(match):
            position = match.end("key")  # the supposed value may itself be a key
            continue
        start, end = match.span(match.lastgroup or 0)  # the group of the value, which closes last
        parts += (text[done:start], MASK)
        done = position = end
    return "".join((*parts, text[done:])) if parts else text


def _is_secret(match: re.Match[str]) -> bool:
    key, gap, kind = match["key"].lower(), match["gap"], match.lastgroup or ""
    before = match.string[max(0, match.start() - 44) : match.start()]
    if key == "pass" and not _is_pass_a_word(match["key"], before, gap, kind):
        return False
    if (key == "token" and piece("PAGING_KEY").search(before)) or (
        key == "secret" and piece("ARN").search(before)
    ):
        return False
    if "=" not in gap and ":" not in gap and not _stands_beside(key, gap, kind, before):
        return False
    return not _says_nothing(key, gap, kind, match[kind]) and not (kind == "bare" and _is_code(match, before))


def _is_pass_a_word(key: str, before: str, gap: str, kind: str) -> bool:
    """Whether "pass" means a password: `SMTP_PASS`, `dbPass`, `"pass": "..."`; "pass: 3" counts tests."""
    if before.endswith(("_", "-")) or (key == "Pass" and before[-1:].islower()):
        return True
    return kind != "bare" and before.endswith(("'", '"')) and gap.startswith(("'", '"', "\\"))


def _is_code(match: re.Match[str], before: str) -> bool:
    """Whether the value is a type, the name of a variable or function, or a directory in the shell's PWD."""
    key, gap, value = match["key"], match["gap"], match["bare"]
    if ":" in gap and "=" not in gap and piece("TYPES").fullmatch(value):
        return True
    if key == "PWD" and value.startswith(("/", "~")) and not before.endswith(("_", ";")):
        return True
    if piece("NAMED").fullmatch(value) or ("==" in gap and piece("COMPARED").fullmatch(value)):
        return True
    word = piece("WORD_BEFORE").search(before)
    whole = f"{word[0] if word else ''}{key}".lstrip("_").lower()
    if value.lower() == whole or (gap[-1].isspace() and value.lower() == key.lower()):
        return True
    return match.string.startswith(("(", "["), match.end()) and piece("CALLED").fullmatch(value) is not None


def _stands_beside(key: str, gap: str, kind: str, before: str) -> bool:
    if gap.isspace() and kind in ("single", "double") and key.startswith(("password", "identified")):
        return True  # SQL's PASSWORD '...'
    opening = piece("BESIDE").search(before)
    return opening is not None and (opening[0].startswith("-") or '"' in gap or "'" in gap)


def _says_nothing(key: str, gap: str, kind: str, value: str) -> bool:
    stripped = value.strip("*.…-")
    if not any(map(str.isalnum, stripped)):
        return kind == "bare" or not stripped
    if piece("NOTHING").fullmatch(stripped) or piece("PLACEHOLDER").fullmatch(value):
        return True
    if kind != "bare":
        return False
    if gap[-1].isspace() and piece("PROSE").fullmatch(value):
        return True
    # "Unexpected token: foo" and "token: 512" are prose and counts; `token=abc` and "token": "abc" are not.
    return (
        key == "token" and (":" in gap or value.isdigit()) and bool(piece("ORDINARY_TOKEN").fullmatch(value))
    )


_HOW: dict[str, Callable[[re.Match[str]], str]] = {
    "any": mask_secret,
    "cased": mask_secret,
    "basic": _mask_basic,
    "block": _mask_block,
    "insert": _mask_insert,
    "statement": _mask_statement,
}


@cache
def rules() -> tuple[SecretRule, ...]:
    """The rules in the order in which they are applied."""
    return tuple(
        SecretRule(
            triggers,
            mask_pairs
            if how == "pairs"
            else partial(Regex(regex, 0 if how == "cased" else re.IGNORECASE).sub, _HOW[how]),
        )
        for triggers, how, regex in forms().rows
    )
