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

from prefect_resilience.base.text import Regex

MASK = "***"


SecretRule = tuple[tuple[str, ...], Callable[[str], str]]
"""The triggers of a form of secret, and how to mask it in a text with one of them."""


@cache
def forms() -> tuple[dict[str, str], list[SecretRule]]:
    """The pieces and the rules of `forms.txt`, in their order, read when the first text is masked."""
    pieces: dict[str, str] = {}
    rules: list[SecretRule] = []
    text = re.sub(r"\n  ", "", Path(__file__).with_name("forms.txt").read_text("utf-8"))
    for head, how, written in re.findall(r"(?m)^(\[.*?\]|\w+) (=|[a-z]+) ?(.*)", text):
        regex = re.sub(r"\{([A-Z_]+)\}", lambda name: pieces[name[1]], written)
        if how == "=":
            pieces[head] = regex
        else:
            flags = 0 if how == "cased" else re.IGNORECASE
            mask = mask_pairs if how == "pairs" else partial(Regex(regex, flags).sub, _HOW[how])
            rules.append((tuple(json.loads(head)), mask))
    return pieces, rules


@cache
def piece(name: str) -> re.Pattern[str]:
    """A piece as an expression for which small and capital letters are the same."""
    return re.compile(forms()[0][name], re.IGNORECASE)


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
    harmless = {"token": "PAGING_KEY", "secret": "ARN"}.get(key)
    if harmless is not None and piece(harmless).search(before):
        return False
    if "=" not in gap and ":" not in gap and not _is_beside(key, gap, kind, before):
        return False
    return not _is_empty(key, gap, kind, match[kind]) and not (kind == "bare" and _is_code(match, before))


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
    word = re.split(r"[^\w\-]", before)[-1]
    names = {f"{word}{key}".lstrip("_").lower(), key.lower() if gap[-1].isspace() else None}
    is_called = match.string.startswith(("(", "["), match.end())
    return value.lower() in names or (is_called and piece("CALLED").fullmatch(value) is not None)


def _is_beside(key: str, gap: str, kind: str, before: str) -> bool:
    if gap.isspace() and kind in ("single", "double") and key.startswith(("password", "identified")):
        return True  # SQL's PASSWORD '...'
    opening = piece("BESIDE").search(before)
    return opening is not None and (opening[0].startswith("-") or '"' in gap or "'" in gap)


def _is_empty(key: str, gap: str, kind: str, value: str) -> bool:
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
    is_ordinary = key == "token" and (":" in gap or value.isdigit())
    return is_ordinary and piece("ORDINARY_TOKEN").fullmatch(value) is not None


_HOW: dict[str, Callable[[re.Match[str]], str]] = {
    "any": mask_secret,
    "cased": mask_secret,
    "basic": _mask_basic,
    "block": _mask_block,
    "insert": _mask_insert,
    "statement": _mask_statement,
}
