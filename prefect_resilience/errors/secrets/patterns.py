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

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.secrets.pairs import KEY, KEY_TRIGGERS, MASK, PLACEHOLDER, mask_pairs
from prefect_resilience.errors.secrets.places import PLACES

_I = re.IGNORECASE


class SecretRule(NamedTuple):
    """How to mask one sort of secret; skipped when no trigger (lower-case, if `folded`) is in the text."""

    triggers: tuple[str, ...]
    mask: Callable[[str], str]
    folded: bool = False


def _rule(
    triggers: tuple[str, ...],
    pattern: Regex,
    replacement: str | Callable[[re.Match[str]], str],
    folded: bool = False,
) -> SecretRule:
    return SecretRule(triggers, partial(pattern.sub, replacement), folded)


# Tokens that say by a prefix whose they are. No letter or digit may stand before one: "task-" is no "sk-".
_PREFIXED = (
    # OpenAI, Anthropic and many that followed them; words joined by hyphens are a name, such as a package's
    r"sk-(?!(?:[a-z]{1,15}[\-_]){1,8}(?:[a-z]{1,15}|v?\d{1,4})(?![A-Za-z0-9_\-]))[A-Za-z0-9_\-]{12,512}",
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
    r"hv[sb]\.[A-Za-z0-9_\-]{20,256}|AT(?:ATT|CTT)3[A-Za-z0-9_\-=]{20,512}|lin_(?:api|oauth)_[A-Za-z0-9]{20,128}",
    r"figd_[A-Za-z0-9_\-]{20,128}|AGE-SECRET-KEY-1[A-Z0-9]{20,128}|EAA[A-Za-z0-9]{24,512}",  # Meta, Square
    r"sq0(?:csp|atp|idp)-[A-Za-z0-9_\-]{20,128}|key-[0-9a-f]{32}(?![0-9A-Za-z])|pcsk_[A-Za-z0-9_]{20,128}",
    r"(?:ntn_|secret_)[A-Za-z0-9]{30,64}|PMAK-[0-9a-f\-]{20,128}|glsa_[A-Za-z0-9_]{20,128}|NRAK-[A-Z0-9]{20,64}",
    r"sbp_[0-9a-f]{32,64}|pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_\-.=]{20,128}|dp\.(?:pt|st|ct|sa)\.[A-Za-z0-9_.]{20,128}",
    r"sntry[su]_[A-Za-z0-9_=+/]{20,512}|tgp_v1_[A-Za-z0-9_\-]{20,128}|CCIPAT_[A-Za-z0-9_]{20,128}|bkua_[0-9a-f]{32,64}",
    r"rzp_(?:live|test)_[A-Za-z0-9]{10,64}|pat-[a-z]{2}\d-[0-9a-f\-]{30,64}|access-(?:production|sandbox)-[0-9a-f\-]{30,64}",
    r"pul-[0-9a-f]{32,64}|rubygems_[0-9a-f]{32,64}|shippo_(?:live|test)_[0-9a-f]{32,64}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_\-=]{40,128}|LTAI[A-Za-z0-9]{12,30}(?![A-Za-z0-9])|HRKU-[A-Za-z0-9_\-]{30,64}",
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
    *("SG.", "SK", "dop_v1_", "dapi", "shp", "hvs.", "hvb.", "ATATT3", "ATCTT3", "lin_"),
    *(
        "figd_",
        "AGE-SECRET",
        "EAA",
        "sq0",
        "key-",
        "pcsk_",
        "ntn_",
        "secret_",
        "PMAK-",
        "glsa_",
        "NRAK-",
        "sbp_",
    ),
    *(
        "pscale_",
        "dp.",
        "sntry",
        "tgp_v1_",
        "CCIPAT_",
        "bkua_",
        "rzp_",
        "pat",
        "access-",
        "pul-",
        "rubygems_",
    ),
    *("shippo_", ".atlasv1.", "LTAI", "HRKU-"),
)

# What follows is itself the key of a secret, whose value would stay behind if the key were masked.
_NO_KEY = rf"""(?![\w\-]{{0,40}}{KEY}(?:\\{{0,8}}["'])?\s{{0,8}}(?::|=[^\s=]))"""
# Code that puts a token in: f"Bearer {token}".
_TEMPLATE = r"""(?!f["'](?:bearer|basic|token)\s\{[\w.]{1,64}\}["'])"""
_STANDS_FOR = (
    rf"""(?!(?:b(?=["']))?["']?(?:(?:basic|bearer|token|apikey)\s{{1,8}})?{PLACEHOLDER}(?![\w\-]))"""
)
_CHALLENGE = r"(?!(?:realm|error|scope|charset|authorization_uri)=)"
_SCHEME = r"(?:(?:basic|bearer|token|negotiate|apikey|key|ntlm)\s{1,8})?"
_AUTHORIZATION = Regex(
    rf"""((?:proxy-)?authorization(?:\\{{0,8}}["']){{0,2}}\s{{0,8}}[:=,]\s{{0,8}}{_TEMPLATE}{_STANDS_FOR}(?:b(?=["']))?"""
    rf"""(?:\\{{0,8}}["'])?{_SCHEME}){_NO_KEY}(digest\s[^\r\n]{{1,4096}}|aws4-[^\r\n]{{1,4096}}|[^\s"'\\]{{1,8192}})""",
    _I,
)
_BEARER = Regex(
    rf"(?<![\w\-])((?:bearer|basic)\s{{1,8}}){_CHALLENGE}{_NO_KEY}"
    r"(?=[\w\-.~+/]{0,64}[\d=]|[\w\-.~+/]{24})[\w\-.~+/=]{6,8192}",
    _I,
)
_COOKIE = Regex(
    r"""((?:set-)?cookie\d?(?:\\{0,8}["']){0,2}\s{0,8}[:=,](?!\s{0,8}(?:none|null)\b)\s{0,8}(?:b(?=["']))?)(?:("|')(?:(?!\2)[^\r\n])*|(?!["'])[^\r\n"']+)""",
    _I,
)


def _mask_cookie(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2] or ''}{MASK}"


RULES: tuple[SecretRule, ...] = (
    *(SecretRule(triggers, mask, folded=True) for triggers, mask in PLACES),
    _rule(
        ("-----BEGIN",),
        Regex(
            r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
            r".*?(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
        rf"\1{MASK}\2",
    ),
    _rule(
        ("://",),
        Regex(
            r"""(://[^\s/:@"'<>]{0,256}:)(?!\d{1,5}(?:[/?\#]|$))(?!PASS(?:WORD)?@)(?:[^\s"'<>@:]|:(?!//)){1,2048}@(?:[^\s/?\#"'<>@]{1,256}@)?"""
        ),
        rf"\1{MASK}@",
    ),
    _rule(
        ("hooks.slack.com", "/api/webhooks/", "webhook.office.com", "hooks.zapier.com"),
        Regex(
            r"(hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/\d{5,24}/|webhook\.office\.com/"
            r"|hooks\.zapier\.com/hooks/catch/)"
            r"""[^\s"'<>?]{1,512}"""
        ),
        rf"\1{MASK}",
    ),
    _rule((":A",), Regex(r"(?<!\d)(\d{5,16}):A[\w\-]{30,64}"), rf"\1:{MASK}"),  # Telegram
    _rule(
        (".G", ".C", ".D", ".F", ".W", ".X", ".Y", ".Z"),  # Discord: the middle part is a time
        Regex(r"(?<![A-Za-z0-9])[MNO][A-Za-z0-9]{23,27}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{25,64}"),
        MASK,
    ),
    _rule(("/bot",), Regex(r"(/bot\d{5,16}:)[\w\-]{30,64}"), rf"\1{MASK}"),
    _rule(
        ("eyJ",),
        Regex(r"(?<![\w\-])eyJ[\w\-]{5,}\.[\w\-]{5,}(?:\.[\w\-]*){0,3}"),
        MASK,
    ),
    _rule(("uthorization", "UTHORIZATION"), _AUTHORIZATION, rf"\1{MASK}"),
    _rule(("earer", "EARER", "asic", "ASIC"), _BEARER, rf"\1{MASK}"),
    _rule(("ookie", "OOKIE"), _COOKIE, _mask_cookie),
    _rule(_PREFIX_TRIGGERS, Regex(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})"), MASK),
    _rule(
        ("=",),
        Regex(
            r"""((?:[?&]|&amp;|%3F|%26)(?!(?:next|page|continuation|sync|skip|sort)[\w\-]{0,12}(?:token|key)=)"""
            r"""(?:[\w\-.]{0,32}(?:key|token|secret|sig|signature|password|pwd|passwd|auth|"""
            r"""credential|sas|assertion|jwt|code_verifier|session_?id))(?:=|%3D))[^&\s\#"'<>]{1,8192}""",
            _I,
        ),
        rf"\1{MASK}",
    ),
    _rule(("ignature",), Regex(r"(signature\s?[=:]\s?)[A-Za-z0-9+/%]{24,1024}={0,2}", _I), rf"\1{MASK}"),
    _rule(
        ("key provided",),
        Regex(r"(api key provided:?\s{1,4})[^\s,;\"']{4,512}", _I),
        rf"\1{MASK}",
        folded=True,
    ),
    SecretRule(KEY_TRIGGERS, mask_pairs, folded=True),
)
