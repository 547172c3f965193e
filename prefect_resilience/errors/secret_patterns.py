"""What secrets look like: the rules that `redact` applies, in this order.

A rule runs only when one of its `triggers` is in the text, so that clean text costs a few substring searches.
Every pattern is linear: repeats are bounded, or nothing that may be missing follows them, or a look-behind
lets them start at most once per word. A replacement keeps what tells a reader where the secret was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

MASK = "***"

_I = re.IGNORECASE


class SecretRule(NamedTuple):
    """A pattern and what stands for its match; skipped when no trigger (lower-case, if `folded`) is there."""

    triggers: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]
    folded: bool = False


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
    r"(?:pass(?:word|wd|phrase|code)|passwort|pwd|secret|token|credentials?|(?<=_)pass"
    r"|(?:api|access|private|account|secret|signing|encryption|subscription|master|auth|storage|function)"
    r"[\s_\-]{0,2}key|sharedaccess(?:key|signature)|connection[\s_\-]{0,2}string)"
)
_KEY_TRIGGERS = ("pass", "pwd", "secret", "token", "credential", "key", "sharedaccess", "connection")

# A quoted value ends at its own quote, or at the end of the line when that is missing. Inside a string that
# was itself quoted, the quotes carry backslashes.
_QUOTED = (
    r'b?"(?P<double>(?:[^"\\\n]|\\.)*)'
    r"|b?'(?P<single>(?:[^'\\\n]|\\.)*)"
    r"""|\\{1,4}["'](?P<escaped>(?:(?!\\+["'])[^\n])*)"""
)
# A bare value goes on over a comma or a bracket that is not followed by what would end it.
_BARE = r"""(?:[^\s,;&"'`<>()\[\]{}|\\]|,(?![\s"']|[\w\-]{1,40}[=:]|$)|[)\]}](?=[\w])|\\(?!["']))+"""

_PAIR = re.compile(
    rf"(?P<key>{_KEY})(?P<gap>(?:\\{{0,4}}[\"'\]]){{0,2}}\s{{0,8}}(?:=>|:=|==?|:)\s{{0,8}})(?:{_QUOTED}|(?P<bare>{_BARE}))",
    _I,
)
# ("x-api-key", "..."), --password ..., ['--password', '...'] and SQL's PASSWORD '...'
_LISTED = re.compile(
    rf"(?P<key>(?:--[\w\-]{{0,40}}|\(b?[\"'][\w\-]{{0,40}}){_KEY})(?P<gap>[\"']?,?\s{{1,8}})(?:{_QUOTED}|(?P<bare>{_BARE}))",
    _I,
)
_SQL = re.compile(r"(?P<key>password|identified\s{1,8}by)(?P<gap>\s{1,8})'(?P<single>(?:[^'\\\n]|\\.)*)", _I)

_NOTHING = frozenset({"none", "null", "true", "false", "undefined", "nil", "[redacted]", "[secure]"})
_ORDINARY_TOKEN = re.compile(r"\d{1,7}(?:\.\d{1,7})?%?|[a-z]{1,15}[.!?]?")


def _mask_pair(match: re.Match[str]) -> str:
    """The pair with its value masked, unless the value says nothing."""
    found = match.groupdict()
    name, value = next((n, v) for n, v in found.items() if n not in ("key", "gap") and v is not None)
    if _says_nothing(found["key"], found["gap"], name, value):
        return match[0]
    start, end = match.span(name)
    return match.string[match.start() : start] + MASK + match.string[end : match.end()]


def _says_nothing(key: str, gap: str, kind: str, value: str) -> bool:
    stripped = value.strip("*.…")
    if not any(map(str.isalnum, stripped)):
        return kind == "bare" or not stripped
    if stripped.lower() in _NOTHING:
        return True
    # "Unexpected token: foo" and "token: 512" are prose and counts; `token=abc` and "token": "abc" are not.
    prose = kind == "bare" and key.lower() == "token" and _ORDINARY_TOKEN.fullmatch(value) is not None
    return prose and (":" in gap or value.isdigit())


_SCHEME = r"(?:(?:basic|bearer|token|negotiate|apikey|key|ntlm)\s{1,8})?"
_AUTHORIZATION = re.compile(
    rf"""((?:proxy-)?authorization(?:\\{{0,4}}["']){{0,2}}\s{{0,8}}[:=,]\s{{0,8}}(?:b(?=["']))?(?:\\{{0,4}}["'])?{_SCHEME})"""
    r"""(digest\s[^\r\n]{1,4096}|aws4-[^\r\n]{1,4096}|[^\s"'\\]{1,8192})""",
    _I,
)
_BEARER = re.compile(
    r"(?<![\w\-])((?:bearer|basic)\s{1,8})(?=[\w\-.~+/]{0,64}[\d=]|[\w\-.~+/]{24})[\w\-.~+/]{6,8192}={0,2}",
    _I,
)
_COOKIE = re.compile(
    r"""((?:set-)?cookie\d?(?:\\{0,4}["']){0,2}\s{0,8}[:=,]\s{0,8}(?:b(?=["']))?)(?:("|')(?:(?!\2)[^\r\n])*|(?!["'])[^\r\n"']+)""",
    _I,
)


def _mask_cookie(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2] or ''}{MASK}"


RULES: tuple[SecretRule, ...] = (
    SecretRule(
        ("-----BEGIN",),
        re.compile(
            r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
            r".*?(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
        rf"\1{MASK}\2",
    ),
    SecretRule(
        ("://",),
        re.compile(
            r"""(://[^\s/:@"'<>]{0,256}:)(?!\d{1,5}(?:[/?\#]|$))[^\s"'<>@]{1,2048}@(?:[^\s/?\#"'<>@]{1,256}@)?"""
        ),
        rf"\1{MASK}@",
    ),
    SecretRule(
        ("hooks.slack.com", "/api/webhooks/", "webhook.office.com"),
        re.compile(
            r"(hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/\d{5,24}/|webhook\.office\.com/)"
            r"""[^\s"'<>?]{1,512}"""
        ),
        rf"\1{MASK}",
    ),
    SecretRule((":A",), re.compile(r"(?<!\d)(\d{5,16}):A[\w\-]{30,64}"), rf"\1:{MASK}"),  # Telegram
    SecretRule(
        ("eyJ",),
        re.compile(r"(?<![\w\-])eyJ[\w\-]{5,}\.[\w\-]{5,}(?:\.[\w\-]*){0,3}"),
        MASK,
    ),
    SecretRule(("uthorization", "UTHORIZATION"), _AUTHORIZATION, rf"\1{MASK}"),
    SecretRule(("earer", "EARER", "asic", "ASIC"), _BEARER, rf"\1{MASK}"),
    SecretRule(("ookie", "OOKIE"), _COOKIE, _mask_cookie),
    SecretRule(_PREFIX_TRIGGERS, re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})"), MASK),
    SecretRule(
        ("=",),
        re.compile(
            r"""((?:[?&]|&amp;|%3F|%26)(?:[\w\-.]{0,32}(?:key|token|secret|sig|signature|password|pwd|passwd|auth|"""
            r"""credential|sas|assertion|jwt))(?:=|%3D))[^&\s\#"'<>]{1,8192}""",
            _I,
        ),
        rf"\1{MASK}",
    ),
    SecretRule(
        ("ignature",), re.compile(r"(signature\s?[=:]\s?)[A-Za-z0-9+/%]{24,1024}={0,2}", _I), rf"\1{MASK}"
    ),
    SecretRule(
        ("key provided",),
        re.compile(r"(api key provided:?\s{1,4})[^\s,;\"']{4,512}", _I),
        rf"\1{MASK}",
        folded=True,
    ),
    SecretRule(_KEY_TRIGGERS, _PAIR, _mask_pair, folded=True),
    SecretRule(_KEY_TRIGGERS, _LISTED, _mask_pair, folded=True),
    SecretRule(("password", "identified"), _SQL, _mask_pair, folded=True),
)
