"""Secrets by the name of their key: `password=...`, `"api_key": "..."`, `--token ...`.

A value is not masked when it has no content (`null`, `missing`), when it is a type (`password: str`), and
when it is source code that names the origin of the secret (`password=config.password`).
"""

from __future__ import annotations

import re

from prefect_resilience.base.regexes import Regex

MASK = "***"


def words(text: str) -> tuple[str, ...]:
    """The words of a table."""
    return tuple(text.split())


_I = re.IGNORECASE

KEY = (
    r"(?:pass(?:word|wd|phrase|code)?|passwort|(?:bind|root|admin|user|ldap|db)[_\-]?pw(?!d)|pwd|secret|token|credentials?|client[_\-]?assertion|code[_\-]?verifier|identified\s{1,8}by"
    r"|(?:api|access|private|account|secret|signing|encryption|subscription|master|auth|storage|function|client)"
    r"[\s_\-]{0,2}key(?:[_\-](?:base|data|material))?|sharedaccess(?:key|signature)|connection[\s_\-]{0,2}string)"
)
TAIL = r"(?:(?<!token)(?<!secret)s|[_\-]?(?:confirm(?:ed|ation)?|again|repeat(?:ed)?|value|hash|\d{1,2}))?"
"""Suffixes of a key's name: `password_confirm`, `api_keys`. Not "tokens" (a count) or "secrets" (names)."""
SHORT_CODE = (
    r"(?:t?otp|pin|cv[vc]2?|(?:pin|otp|mfa|2fa|sms|security|verification|login|one[ _\-]?time)[ _\-]?code)"
)
"""The name of a secret that counts only beside digits."""
KEY_TRIGGERS = words(
    "pass pwd pw secret token credential key sharedaccess connection identified assertion verifier"
)

# A quoted value ends at its own quote, or at the end of the line when that is missing. Inside a string that
# was itself quoted, the quotes carry backslashes.
_QUOTED = (
    r'b?"(?P<double>(?:[^"\\\n]|\\.)*)'
    r"|b?'(?P<single>(?:[^'\\\n]|\\.)*)"
    r"""|\\{1,8}["'](?P<escaped>(?:(?!\\+["'])[^\n])*)"""
)
# A bare value may contain a comma or a bracket, unless the text after that ends the value.
_BARE = r"""(?:[^\s,;&"'`<>()\[\]{}|\\]|,(?![\s"']|[\w\-]{1,40}[=:]|$)|[)\]}](?=[\w])|\\(?!["']))+"""
# key=value, "key": "value", and a value after its key without a separator.
_GAP = (
    r""":\s{0,8}[A-Za-z_][\w.\[\]| ]{0,60}?\s{0,4}=\s{0,8}(?=b?["'])"""
    r"""|(?:\\{0,8}["'\]]){0,2}\s{0,8}(?:=>|:=|==?|:)\s{0,8}(?:\[\s{0,4}(?=["']))?|["']?,?\s{1,8}"""
    r"""|\\{0,8}["'],(?=\\{0,8}["'])"""
)
_PAIR = Regex(rf"(?P<key>{KEY}){TAIL}(?P<gap>{_GAP})(?:{_QUOTED}|(?P<bare>{_BARE}))", _I)
# Without a separator a value counts in ("x-api-key", "..."), --password ... and ['--password', '...'].
_BESIDE = Regex(r"""(?:(?<!-)--|\(b?["'])[\w\-]{0,40}\Z""")

_NOTHING = words("""
    none null true false undefined nil [redacted] [secure] missing required unset empty invalid expired
    omitted include omit
""")
_PROSE = words("""
    at must is was should not the has have cannot can may will for to and or with flag option argument instead
    if when as await new authentication wrong incorrect unknown changed rejected denied
""")
_TYPES = words("""
    str bytes int float bool dict list tuple object any optional union literal annotated callable secretstr
    secretbytes secret string text number boolean char varchar final classvar path
""")
# Placeholders for secrets in documentation, in a command's usage, in a template.
PLACEHOLDER = (
    r"(?-i:<[\w \-]{1,40}>|\$\{?[A-Z_][A-Z0-9_]{0,60}\}?|[xX]{3,64}|!(?:vault|secret|ref|env)"
    r"|[yY](?:our|OUR)[_\- ][\w \-]{1,40}|(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASS|PWD))"
)
_PLACEHOLDER = Regex(PLACEHOLDER)
_ORDINARY_TOKEN = Regex(r"\d{1,7}(?:\.\d{1,7})?%?|[a-z]{1,15}[.!?]?")
# `next_page_token`, `sortKey`: used for paging and sorting, not secret.
_PAGE = r"(?:page|next|previous|continuation|sync|cursor|pagination|skip|resume|sort|start|end)[_\-]?"
_PAGING = Regex(rf"{_PAGE}\Z", _I)
PAGING_NAME = Regex(rf"{_PAGE}token\Z", _I)
_ARN = Regex(r":\d{12}:\Z")  # arn:aws:secretsmanager:eu-west-1:123456789012:secret:name
# `config.password`, `self._token`, `api_key`: a variable's name, not its value.
_NAMED = Regex(rf"(?:[A-Za-z_]\w{{0,40}}\.){{1,6}}[A-Za-z_]{{0,40}}{KEY}", _I)
_COMPARED = Regex(r"[a-z_]{1,40}")
_CALLED = Regex(r"(?:[A-Za-z_]\w{0,40}\.){1,6}[A-Za-z_]\w{0,40}|[a-z]{1,20}(?:_[a-z]{1,20}){1,5}")
_WORD_BEFORE = Regex(r"[\w\-]{0,40}\Z")


def mask_pairs(text: str) -> str:
    """The text with the values masked of all keys that are named like a secret."""
    parts: list[str] = []
    done = position = 0
    while (match := _PAIR.search(text, position)) is not None:
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
    if (key == "token" and _PAGING.search(before)) or (key == "secret" and _ARN.search(before)):
        return False
    paired = "=" in gap or ":" in gap
    if not paired and not _stands_beside(key, gap, kind, before):
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
    if ":" in gap and "=" not in gap and value.lower() in _TYPES:
        return True
    if key == "PWD" and value.startswith(("/", "~")) and not before.endswith(("_", ";")):
        return True
    if "==" in gap and _COMPARED.fullmatch(value):
        return True
    word = _WORD_BEFORE.search(before)
    whole = f"{word[0] if word else ''}{key}".lstrip("_")
    named = (whole.lower(), key.lower()) if gap[-1].isspace() else (whole.lower(),)
    if value.lower() in named or _NAMED.fullmatch(value):
        return True
    return match.string[match.end() : match.end() + 1] in ("(", "[") and _CALLED.fullmatch(value) is not None


def _stands_beside(key: str, gap: str, kind: str, before: str) -> bool:
    if gap.isspace() and kind in ("single", "double") and key.startswith(("password", "identified")):
        return True  # SQL's PASSWORD '...'
    opening = _BESIDE.search(before)
    return opening is not None and (opening[0].startswith("-") or '"' in gap or "'" in gap)


def _says_nothing(key: str, gap: str, kind: str, value: str) -> bool:
    stripped = value.strip("*.…-")
    if not any(map(str.isalnum, stripped)):
        return kind == "bare" or not stripped
    if stripped.lower() in _NOTHING or _PLACEHOLDER.fullmatch(value):
        return True
    if kind == "bare" and gap[-1].isspace() and value.lower() in _PROSE:
        return True
    # "Unexpected token: foo" and "token: 512" are prose and counts; `token=abc` and "token": "abc" are not.
    prose = kind == "bare" and key == "token" and _ORDINARY_TOKEN.fullmatch(value) is not None
    return prose and (":" in gap or value.isdigit())
