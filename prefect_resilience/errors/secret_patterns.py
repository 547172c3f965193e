"""What secrets look like: the rules that `redact` applies, in this order.

A rule runs only when one of its `triggers` is in the text, so that clean text costs a few substring searches.
Every pattern is linear: repeats are bounded, or nothing that may be missing follows them, or a look-behind
lets them start at most once per word. A replacement keeps what tells a reader where the secret was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

MASK = "***"

_I = re.IGNORECASE


class SecretRule(NamedTuple):
    """How to mask one sort of secret; skipped when no trigger (lower-case, if `folded`) is in the text."""

    triggers: tuple[str, ...]
    mask: Callable[[str], str]
    folded: bool = False


def _rule(
    triggers: tuple[str, ...],
    pattern: re.Pattern[str],
    replacement: str | Callable[[re.Match[str]], str],
    folded: bool = False,
) -> SecretRule:
    return SecretRule(triggers, partial(pattern.sub, replacement), folded)


# Tokens that say by a prefix whose they are. No letter or digit may stand before one: "task-" is no "sk-".
_PREFIXED = (
    r"sk-[A-Za-z0-9_\-]{12,512}",  # OpenAI, Anthropic and many that followed them
    r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{8,256}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{8,256}",
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,24}(?![A-Za-z0-9])",  # AWS ids
    r"gh[pousr]_[A-Za-z0-9]{16,256}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{16,256}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_\-.]{10,256}",  # GitLab
    r"xox[a-z]-[A-Za-z0-9\-]{8,256}|xapp-[A-Za-z0-9\-]{8,256}",  # Slack
    r"AIza[A-Za-z0-9_\-]{20,64}|ya29\.[A-Za-z0-9_\-.]{8,2048}|GOCSPX-[A-Za-z0-9_\-]{16,64}",  # Google
    r"pn[ub]_[A-Za-z0-9]{16,256}",  # Prefect
    r"hf_[A-Za-z0-9]{16,128}|r8_[A-Za-z0-9]{20,128}|gsk_[A-Za-z0-9]{20,128}|xai-[A-Za-z0-9]{20,256}",
    r"pplx-[A-Za-z0-9]{20,128}|nvapi-[A-Za-z0-9_\-]{20,256}|lsv2_[A-Za-z0-9_]{20,256}",
    r"npm_[A-Za-z0-9]{16,128}|pypi-[A-Za-z0-9_\-]{16,1024}|dckr_pat_[A-Za-z0-9_\-]{16,128}",
    r"SG\.[A-Za-z0-9_\-]{8,128}\.[A-Za-z0-9_\-]{8,128}",  # SendGrid
    r"SK[0-9a-f]{32}(?![0-9A-Za-z])",  # Twilio
    r"dop_v1_[0-9a-f]{32,128}|dapi[0-9a-f]{32}(?:-\d)?|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    r"hv[sb]\.[A-Za-z0-9_\-]{20,256}|ATATT3[A-Za-z0-9_\-=]{20,512}|lin_api_[A-Za-z0-9]{20,128}",
)
_PREFIX_TRIGGERS = (
    *("sk-", "sk_", "rk_", "whsec_", "AKIA", "ASIA", "ABIA", "ACCA", "AROA", "AIDA"),
    *(
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "gl",
        "xox",
        "xapp-",
        "AIza",
        "ya29.",
        "GOCSPX-",
    ),
    *("pnu_", "pnb_", "hf_", "r8_", "gsk_", "xai-", "pplx-", "nvapi-", "lsv2_", "npm_", "pypi-", "dckr_pat_"),
    *("SG.", "SK", "dop_v1_", "dapi", "shp", "hvs.", "hvb.", "ATATT3", "lin_api_"),
)

_KEY = (
    r"(?:pass(?:word|wd|phrase|code)?|passwort|pwd|secret|token|credentials?|identified\s{1,8}by"
    r"|(?:api|access|private|account|secret|signing|encryption|subscription|master|auth|storage|function)"
    r"[\s_\-]{0,2}key|sharedaccess(?:key|signature)|connection[\s_\-]{0,2}string)"
)
_KEY_TRIGGERS = (
    "pass",
    "pwd",
    "secret",
    "token",
    "credential",
    "key",
    "sharedaccess",
    "connection",
    "identified",
)

# A quoted value ends at its own quote, or at the end of the line when that is missing. Inside a string that
# was itself quoted, the quotes carry backslashes.
_QUOTED = (
    r'b?"(?P<double>(?:[^"\\\n]|\\.)*)'
    r"|b?'(?P<single>(?:[^'\\\n]|\\.)*)"
    r"""|\\{1,8}["'](?P<escaped>(?:(?!\\+["'])[^\n])*)"""
)
# A bare value goes on over a comma or a bracket that is not followed by what would end it.
_BARE = r"""(?:[^\s,;&"'`<>()\[\]{}|\\]|,(?![\s"']|[\w\-]{1,40}[=:]|$)|[)\]}](?=[\w])|\\(?!["']))+"""
# key=value, "key": "value", and what only stands beside its key.
_GAP = r"""(?:\\{0,8}["'\]]){0,2}\s{0,8}(?:=>|:=|==?|:)\s{0,8}|["']?,?\s{1,8}"""
_PAIR = re.compile(rf"(?P<key>{_KEY})(?P<gap>{_GAP})(?:{_QUOTED}|(?P<bare>{_BARE}))", _I)
# Beside its key a value counts in ("x-api-key", "..."), --password ... and ['--password', '...'].
_BESIDE = re.compile(r"""(?:(?<!-)--|\(b?["'])[\w\-]{0,40}\Z""")

_NOTHING = frozenset({"none", "null", "true", "false", "undefined", "nil", "[redacted]", "[secure]"})
_ORDINARY_TOKEN = re.compile(r"\d{1,7}(?:\.\d{1,7})?%?|[a-z]{1,15}[.!?]?")


def _mask_pairs(text: str) -> str:
    """The text with the values of all keys masked whose names smell of a secret."""
    parts: list[str] = []
    done = position = 0
    while (match := _PAIR.search(text, position)) is not None:
        if not _is_secret(match):
            position = match.end("key")  # what was taken for a value may be a key itself
            continue
        start, end = match.span(match.lastgroup or 0)  # the group of the value, which closes last
        parts += (text[done:start], MASK)
        done = position = end
    return "".join((*parts, text[done:])) if parts else text


def _is_secret(match: re.Match[str]) -> bool:
    key, gap, kind = match["key"].lower(), match["gap"], match.lastgroup or ""
    before = match.string[max(0, match.start() - 44) : match.start()]
    if key == "pass" and not before.endswith(("_", "-")):
        return False
    paired = "=" in gap or ":" in gap
    if not paired and not _stands_beside(key, gap, kind, before):
        return False
    return not _says_nothing(key, gap, kind, match[kind])


def _stands_beside(key: str, gap: str, kind: str, before: str) -> bool:
    if gap.isspace() and kind == "single" and key.startswith(("password", "identified")):
        return True  # SQL's PASSWORD '...'
    opening = _BESIDE.search(before)
    return opening is not None and (opening[0].startswith("-") or '"' in gap or "'" in gap)


def _says_nothing(key: str, gap: str, kind: str, value: str) -> bool:
    stripped = value.strip("*.…")
    if not any(map(str.isalnum, stripped)):
        return kind == "bare" or not stripped
    if stripped.lower() in _NOTHING:
        return True
    # "Unexpected token: foo" and "token: 512" are prose and counts; `token=abc` and "token": "abc" are not.
    prose = kind == "bare" and key == "token" and _ORDINARY_TOKEN.fullmatch(value) is not None
    return prose and (":" in gap or value.isdigit())


# What follows is itself the key of a secret, whose value would stay behind if the key were masked.
_NO_KEY = rf"""(?![\w\-]{{0,40}}{_KEY}(?:\\{{0,8}}["'])?\s{{0,8}}(?::|=[^\s=]))"""
_SCHEME = r"(?:(?:basic|bearer|token|negotiate|apikey|key|ntlm)\s{1,8})?"
_AUTHORIZATION = re.compile(
    rf"""((?:proxy-)?authorization(?:\\{{0,8}}["']){{0,2}}\s{{0,8}}[:=,]\s{{0,8}}(?:b(?=["']))?(?:\\{{0,8}}["'])?{_SCHEME})"""
    rf"""{_NO_KEY}(digest\s[^\r\n]{{1,4096}}|aws4-[^\r\n]{{1,4096}}|[^\s"'\\]{{1,8192}})""",
    _I,
)
_BEARER = re.compile(
    rf"(?<![\w\-])((?:bearer|basic)\s{{1,8}}){_NO_KEY}"
    r"(?=[\w\-.~+/]{0,64}[\d=]|[\w\-.~+/]{24})[\w\-.~+/=]{6,8192}",
    _I,
)
_COOKIE = re.compile(
    r"""((?:set-)?cookie\d?(?:\\{0,8}["']){0,2}\s{0,8}[:=,]\s{0,8}(?:b(?=["']))?)(?:("|')(?:(?!\2)[^\r\n])*|(?!["'])[^\r\n"']+)""",
    _I,
)


def _mask_cookie(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2] or ''}{MASK}"


RULES: tuple[SecretRule, ...] = (
    _rule(
        ("-----BEGIN",),
        re.compile(
            r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
            r".*?(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
        rf"\1{MASK}\2",
    ),
    _rule(
        ("://",),
        re.compile(
            r"""(://[^\s/:@"'<>]{0,256}:)(?!\d{1,5}(?:[/?\#]|$))(?:[^\s"'<>@:]|:(?!//)){1,2048}@(?:[^\s/?\#"'<>@]{1,256}@)?"""
        ),
        rf"\1{MASK}@",
    ),
    _rule(
        ("hooks.slack.com", "/api/webhooks/", "webhook.office.com"),
        re.compile(
            r"(hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/\d{5,24}/|webhook\.office\.com/)"
            r"""[^\s"'<>?]{1,512}"""
        ),
        rf"\1{MASK}",
    ),
    _rule((":A",), re.compile(r"(?<!\d)(\d{5,16}):A[\w\-]{30,64}"), rf"\1:{MASK}"),  # Telegram
    _rule(
        ("eyJ",),
        re.compile(r"(?<![\w\-])eyJ[\w\-]{5,}\.[\w\-]{5,}(?:\.[\w\-]*){0,3}"),
        MASK,
    ),
    _rule(("uthorization", "UTHORIZATION"), _AUTHORIZATION, rf"\1{MASK}"),
    _rule(("earer", "EARER", "asic", "ASIC"), _BEARER, rf"\1{MASK}"),
    _rule(("ookie", "OOKIE"), _COOKIE, _mask_cookie),
    _rule(_PREFIX_TRIGGERS, re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})"), MASK),
    _rule(
        ("=",),
        re.compile(
            r"""((?:[?&]|&amp;|%3F|%26)(?:[\w\-.]{0,32}(?:key|token|secret|sig|signature|password|pwd|passwd|auth|"""
            r"""credential|sas|assertion|jwt))(?:=|%3D))[^&\s\#"'<>]{1,8192}""",
            _I,
        ),
        rf"\1{MASK}",
    ),
    _rule(("ignature",), re.compile(r"(signature\s?[=:]\s?)[A-Za-z0-9+/%]{24,1024}={0,2}", _I), rf"\1{MASK}"),
    _rule(
        ("key provided",),
        re.compile(r"(api key provided:?\s{1,4})[^\s,;\"']{4,512}", _I),
        rf"\1{MASK}",
        folded=True,
    ),
    SecretRule(_KEY_TRIGGERS, _mask_pairs, folded=True),
)
