"""The rules for the formats of secrets. `redact` applies them in this order.

A rule runs only when one of its `triggers` is in the text or in its lower-case form, so that clean text
costs a few substring searches. Every pattern takes linear time: a repeat is bounded, or nothing required
follows it, or a look-behind lets it start at most once per word. The group `secret` is masked, or the whole
match if there is no such group. The rest shows a reader where the secret was.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.secrets.pairs import (
    KEY,
    KEY_TRIGGERS,
    MASK,
    PLACEHOLDER,
    SHORT_CODE,
    TAIL,
    mask_pairs,
    words,
)

_I = re.IGNORECASE
_CASED = re.RegexFlag(0)


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


def _rule(
    *triggers: str,
    find: str,
    flags: re.RegexFlag = _I,
    mask: str | Callable[[re.Match[str]], str] = mask_secret,
) -> SecretRule:
    return SecretRule(triggers, partial(Regex(find, flags).sub, mask))


# Tokens with a known prefix. A letter or digit before the prefix rules it out: the "sk-" of "task-" is none.
_PREFIXED = (
    # OpenAI, Anthropic and compatible ones; words joined by hyphens are a name, such as a package's
    r"sk-(?!(?:[a-z]{1,15}[\-_]){1,8}(?:[a-z]{1,15}|v?\d{1,4})(?![A-Za-z0-9_\-]))[A-Za-z0-9_\-]{12,512}",
    r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{8,256}",  # Stripe
    r"whsec_[A-Za-z0-9+/=]{8,256}",
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,24}(?![A-Za-z0-9])",  # AWS ids
    r"gh[pousr]_[A-Za-z0-9]{16,256}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{16,256}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_\-.]{10,256}",  # GitLab
    r"xox[a-z]-[A-Za-z0-9\-]{8,256}|xapp-[A-Za-z0-9\-]{8,256}",  # Slack
    r"AIza[A-Za-z0-9_\-]{20,64}|ya29\.[A-Za-z0-9_\-.]{8,2048}|GOCSPX-[A-Za-z0-9_\-]{16,64}",  # Google
    r"1//0[A-Za-z0-9_\-]{20,512}",  # a refresh token of Google
    r"pn[ub]_[A-Za-z0-9]{16,256}",  # Prefect
    r"hf_[A-Za-z0-9]{16,128}|r8_[A-Za-z0-9]{20,128}|gsk_[A-Za-z0-9]{20,128}|xai-[A-Za-z0-9]{20,256}",
    r"pplx-[A-Za-z0-9]{20,128}|nvapi-[A-Za-z0-9_\-]{20,256}|lsv2_[A-Za-z0-9_]{20,256}",
    r"npm_[A-Za-z0-9]{16,128}|pypi-[A-Za-z0-9_\-]{16,1024}|dckr_pat_[A-Za-z0-9_\-]{16,128}",
    r"SG\.[A-Za-z0-9_\-]{8,128}\.[A-Za-z0-9_\-]{8,128}",  # SendGrid
    r"SK[0-9a-f]{32}(?![0-9A-Za-z])",  # Twilio
    r"dop_v1_[0-9a-f]{32,128}|dapi[0-9a-f]{32}(?:-\d)?|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    r"hv[sb]\.[A-Za-z0-9_\-]{20,256}|AT(?:ATT|CTT)3[A-Za-z0-9_\-=]{20,512}|lin_(?:api|oauth)_[A-Za-z0-9]{20,128}",
    r"figd_[A-Za-z0-9_\-]{20,128}|AGE-SECRET-KEY-1[A-Z0-9]{20,128}|EAA[A-Za-z0-9]{24,512}",  # Meta, Square
    r"sq0(?:csp|atp|idp)-[A-Za-z0-9_\-]{20,128}|key-(?=[a-z]{0,31}\d)[0-9a-zA-Z]{32}(?![0-9A-Za-z])|pcsk_[A-Za-z0-9_]{20,128}",
    r"(?:ntn_|secret_)[A-Za-z0-9]{30,64}|PMAK-[0-9a-f\-]{20,128}|glsa_[A-Za-z0-9_]{20,128}|NRAK-[A-Z0-9]{20,64}",
    r"sbp_[0-9a-f]{32,64}|pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_\-.=]{20,128}|dp\.(?:pt|st|ct|sa)\.[A-Za-z0-9_.]{20,128}",
    r"sntry[su]_[A-Za-z0-9_=+/]{20,512}|tgp_v1_[A-Za-z0-9_\-]{20,128}|CCIPAT_[A-Za-z0-9_]{20,128}|bkua_[0-9a-f]{32,64}",
    r"rzp_(?:live|test)_[A-Za-z0-9]{10,64}|pat-[a-z]{2}\d-[0-9a-f\-]{30,64}|access-(?:production|sandbox)-[0-9a-f\-]{30,64}",
    r"pul-[0-9a-f]{32,64}|rubygems_[0-9a-f]{32,64}|shippo_(?:live|test)_[0-9a-f]{32,64}",
    r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_\-=]{40,128}|LTAI[A-Za-z0-9]{12,30}(?![A-Za-z0-9])|HRKU-[A-Za-z0-9_\-]{30,64}",
)
# Triggers: only a text with one of these may have such a token.
_PREFIXES = words("""
    sk- sk_ rk_ whsec_ AKIA ASIA ABIA ACCA AROA AIDA ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ gl xox xapp- AIza
    ya29. GOCSPX- pnu_ pnb_ hf_ r8_ gsk_ xai- pplx- nvapi- lsv2_ npm_ pypi- dckr_pat_ SG. SK dop_v1_ dapi shp
    hvs. hvb. ATATT3 ATCTT3 lin_ figd_ AGE-SECRET EAA sq0 key- pcsk_ ntn_ secret_ PMAK- glsa_ NRAK- sbp_
    pscale_ dp. sntry tgp_v1_ CCIPAT_ bkua_ rzp_ pat access- pul- rubygems_ shippo_ .atlasv1. LTAI HRKU- 1//0
""")

# Not before the key of another secret: if the key were masked, its value would remain readable.
_NO_KEY = rf"""(?![\w\-]{{0,40}}{KEY}(?:\\{{0,8}}["'])?\s{{0,8}}(?::|=[^\s=]))"""
# Not source code that inserts a token: f"Bearer {token}".
_TEMPLATE = r"""(?!f["'](?:bearer|basic|token)\s\{[\w.]{1,64}\}["'])"""
_STANDS_FOR = (
    rf"""(?!(?:b(?=["']))?["']?(?:(?:basic|bearer|token|apikey)\s{{1,8}})?{PLACEHOLDER}(?![\w\-]))"""
)
_CHALLENGE = r"(?!(?:realm|error|scope|charset|authorization_uri)=)"
_SCHEME = r"(?:(?:basic|bearer|token|negotiate|apikey|key|ntlm)\s{1,8})?"
_AUTHORIZATION = (
    rf"""(?:proxy-)?authorization(?:\\{{0,8}}["']){{0,2}}\s{{0,8}}[:=,]\s{{0,8}}{_TEMPLATE}{_STANDS_FOR}(?:b(?=["']))?"""
    rf"""(?:\\{{0,8}}["'])?{_SCHEME}{_NO_KEY}(?P<secret>digest\s[^\r\n]{{1,4096}}|aws4-[^\r\n]{{1,4096}}|[^\s"'\\]{{1,8192}})"""
)


_GAP = r"""(?:[\s"',\[]{1,6})"""
"""Separates the words of a command, also in a list of arguments."""


def _block(start: str, newline: str, character: str) -> str:
    """A block scalar of YAML under the key of a secret."""
    return (
        rf"{start}(?P<indent>[ \t]{{0,80}})(?P<head>(?:- )?[\"']?[\w.\-]{{0,40}}{KEY}{TAIL}[\"']?"
        rf"[ \t]{{0,8}}:[ \t]{{0,8}}[|>][-+\d]{{0,3}}[ \t]{{0,8}}{newline})"
        rf"(?P<body>(?:(?P=indent)[ \t]{{1,40}}{character}*(?P<end>{newline}|(?!{character}))"
        rf"|[ \t]*{newline})+)"
    )


# In a text quoted by repr() or as JSON, lines end in a backslash and an n.
_QUOTED_BLOCK = _block(
    r"""(?:(?<=\\n)|(?<=["']))""",
    r"(?:\\{1,8}r)?\\{1,8}n",
    r"""(?:(?!(?:\\{1,8}r)?\\{1,8}n|\\{0,8}["'](?:[,;:)\]}\s]|\Z))[^\n])""",
)


def _mask_block(match: re.Match[str]) -> str:
    """Replace the lines of a block scalar by one masked line with the same indent."""
    depth = re.match(r"(?:\s|\\+[rn])*?([ \t]*)(?=[^ \t\\\r\n]|\Z)", match["body"])
    return f"{match['indent']}{match['head']}{depth[1] if depth else ''}{MASK}{match['end'] or ''}"


_PARAMETERS = Regex(r"\[parameters: [^\n]*")
_MORE_OF_IT = Regex(r"\](?=\\{1,8}n\(Background)")
_NAME = Regex(r"'\w{1,200}'\s?:")
_ANY_KEY = Regex(KEY, _I)
_LITERAL = Regex(r"""'(?:[^'\\]|\\.){0,4000}'(?!\s?:)|"(?:[^"\\]|\\.){0,4000}"(?!\s?:)""")


def names_a_secret(statement: str) -> bool:
    """Whether a statement of SQL names a column or a parameter such as `password`."""
    return _ANY_KEY.search(statement) is not None


def _is_masked(parameters: str) -> bool:
    return not any(map(str.isalnum, _NAME.sub("", parameters.removeprefix("[parameters: "))))


def _mask_statements(text: str) -> str:
    """Mask all parameters of a statement that names a secret column. It is unknown which of them is the
    secret, and where a parameter with a quote in it ends."""
    parts: list[str] = []
    done = before = 0
    for match in _PARAMETERS.finditer(text):
        statement = text.rfind("[SQL: ", before, match.start())
        before = match.end()
        if statement < 0 or not names_a_secret(text[statement : match.end()]) or _is_masked(match[0]):
            continue
        quoted = _MORE_OF_IT.search(match[0])
        end = quoted.start() if quoted else match[0].rfind("]")
        parts += (text[done : match.start()], "[parameters: ", MASK)
        done = match.start() + end if end > 0 else match.end()
    return "".join((*parts, text[done:])) if parts else text


def _mask_insert(match: re.Match[str]) -> str:
    return match["into"] + _LITERAL.sub(f"'{MASK}'", match["values"])


def _mask_basic(match: re.Match[str]) -> str:
    """Mask Basic credentials: base64 of `user:password`. A word of prose does not decode to that."""
    try:
        plain = base64.b64decode(match[2], validate=True)
    except (binascii.Error, ValueError):
        return match[0]
    return f"{match[1]}{MASK}" if b":" in plain and plain.isascii() else match[0]


_BREAK = r"(?:\r?\n|\\n)[ \t]{0,8}"
_PART = r"[\w\-]{1,2048}"
_MORE = rf"(?:{_BREAK}{_PART}){{0,40}}"
_LAST = rf"(?:{_BREAK}{_PART}(?=\s|\\n|[\"']|\Z)){{0,40}}"

RULES: tuple[SecretRule, ...] = (
    # YAML, Kubernetes, XML, Terraform
    _rule(
        *(": |", ": >", ":|", ":>"),
        find=_block("^", r"\r?\n", r"[^\n]"),
        flags=_I | re.MULTILINE,
        mask=_mask_block,
    ),
    _rule("\\n", find=_QUOTED_BLOCK, flags=_I | re.MULTILINE, mask=_mask_block),
    _rule(
        "value",
        find=rf"""\b(?:name|key)["']?\s{{0,4}}[:=]\s{{0,4}}["']?[\w.\-]{{0,60}}(?:{KEY}|authorization|cookie)"""
        r"""["']?[\s,]{1,40}["']?value["']?\s{0,4}[:=]\s{0,4}["']?(?P<secret>[^\s"',}<>]{1,2048})""",
    ),
    _rule(
        "</",
        find=rf"""(?:<[\w:.\-]{{0,40}}{KEY}(?:\s[^<>]{{0,200}})?|\bname=["'][\w:.\-]{{0,60}}{KEY}["'][^<>]{{0,200}})"""
        r">\s{0,40}(?P<secret>[^<>\s][^<>]{0,2048})</",
    ),
    _rule(
        "variable",
        find=rf"""\bvariable\s{{1,4}}"[\w\-]{{0,60}}{KEY}"\s{{0,4}}\{{[^{{}}]{{0,400}}?\bdefault\s{{0,8}}=\s{{0,8}}"(?P<secret>[^"\n]{{1,512}})\"""",
    ),
    _rule(
        "insert into",
        find=rf"(?P<into>\binsert into \S{{1,120}} {{0,2}}\([^()\n]{{0,400}}{KEY}[^()\n]{{0,400}}\)"
        r"\s{0,4}values\s{0,4})(?P<values>\([^\n]{0,4000})",
        mask=_mask_insert,
    ),
    # commands
    _rule(
        "vault",
        find=r"\bvault[\s\"',]{1,6}login[\s\"',]{1,6}(?P<secret>[^\s\"',\-=][^\s\"',=]{7,256})(?![^\s\"',])",
    ),
    _rule(
        " -a ",
        find=rf"\bhttps?\s[^\n|]{{0,200}}?{_GAP}?-a{_GAP}[^\s:\"']{{1,100}}:(?P<secret>[^\s\"']{{1,256}})",
    ),
    _rule(
        *("set ", "env ", "setenv ", "setx ", "arg "),
        find=rf"\b(?:setx?|setenv|env|arg)\s{{1,4}}[\w.\-]{{0,60}}{KEY}\s{{1,4}}[\"']?(?P<secret>(?=[^\s=]{{0,200}}\d)[^\s=:\"']{{6,512}})(?![^\s\"'])",
    ),
    # pydantic: it cuts the middle of a long input, and the name of the remaining value may be cut too
    _rule(
        "input_value=",
        find=rf"(?:^|(?<=\\n)|(?<=[\"']))[\w.\-\[\]]{{0,120}}{KEY}{TAIL}(?:\.[^\n\\]{{1,200}})?(?:\n|\\{{1,8}}n)"
        r"[ \t]{1,8}(?:(?!\\{1,8}n)[^\n])*?\binput_value=(?P<secret>[^\n]{0,400}?), input_type=\w{1,60}\]",
        flags=_I | re.MULTILINE,
    ),
    _rule(
        "input_value=",
        find=r"\binput_value=[^\n]{0,60}?\.\.\.(?P<secret>[^\n]{1,60}?), input_type=(?!(?:str|bytes)\b)",
    ),
    # SQL
    SecretRule(("[parameters:",), _mask_statements),
    _rule("failing row contains (", find=r"\bfailing row contains \((?P<secret>[^\n]{1,8000})\)"),
    _rule(
        "key (", find=rf"\bkey \([^()\n]{{0,200}}{KEY}[^()\n]{{0,200}}\)=\((?P<secret>[^()\n]{{1,1000}})\)"
    ),
    _rule(
        "password",
        find=r"\bset\s{1,4}password(?:\s{1,4}for\s{1,4}\S{1,100})?\s{0,4}=\s{0,4}(?:password\()?'(?P<secret>[^'\n]{1,256})'",
    ),
    # commands again
    _rule(
        *("mysql", "mariadb", "mycli"),
        find=rf"\b(?:mysql|mysqldump|mysqladmin|mysqlimport|mariadb|mariadb-dump|mycli)\b[^\n|;]{{0,200}}?{_GAP}-p"
        r"(?P<secret>[^\s\"',\]]{2,256})",
    ),
    _rule(
        "curl",
        find=rf"\bcurl\b[^\n|]{{0,400}}?{_GAP}(?:-u|-U|--user|--proxy-user){_GAP}?=?[\"']?[^\s:\"']{{1,100}}:"
        r"(?P<secret>[^\s\"']{1,256})",
    ),
    _rule(
        *("login", "sshpass", "sqlcmd", "ldapsearch", "mongo"),
        find=r"(?:\b(?:docker|podman|buildah|skopeo|crane|oras|helm\s{1,4}registry|az|oc|argocd|vault)[\s\"',]{1,6}login\b"
        r"|\b(?:sshpass|sqlcmd|ldapsearch|mongo|mongosh|mongodump|mongorestore)\b)"
        rf"[^\n|;]{{0,200}}?{_GAP}-(?:p|P|w){_GAP}?(?P<secret>[^\s\"',\]]{{2,256}})",
        flags=_CASED,
    ),
    _rule("redis-cli", find=rf"\bredis-cli\b[^\n|;]{{0,200}}?{_GAP}-a{_GAP}(?P<secret>[^\s\"',\]]{{1,256}})"),
    _rule("pass:", find=r"-pass(?:in|out)?[\s\"',=]{1,6}pass:(?P<secret>[^\s\"']{1,256})"),
    _rule("login", find=r"\blogin\s{1,8}\S{1,100}\s{1,8}password\s{1,8}(?P<secret>\S{1,256})"),
    _rule(
        *("'-p", '"-p'),
        find=r"""["']-p\\{0,8}["']\s{0,4},\s{0,4}\\{0,8}["'](?P<secret>(?![\d:.]{1,21}\\{0,8}["']|[./~\-])[^\s"'\\]{1,256})""",
    ),
    # connections and URLs
    _rule(
        *("%3d", "%3a", "%253"),
        find=rf"{KEY}{TAIL}(?:%(?:25){{0,4}}22)?%(?:25){{0,4}}3[ad](?:%(?:25){{0,4}}2[02]){{0,4}}"
        r"(?P<secret>(?:(?!%(?:25){0,4}(?:2[0267c]|7d))[^\s&\"'<>\#]){1,8192})",
    ),
    _rule(
        *("={", "= {"),
        find=rf"\b(?:pwd|password)\s{{0,4}}=\s{{0,4}}(?!\{{[\w.]{{0,40}}{KEY}\}}|\{{\}})(?P<secret>\{{(?:[^}}\n]|\}}\}}){{1,512}}\}})",
    ),
    _rule(
        "jdbc:oracle",
        "sqlplus",
        find=r"\b(?:jdbc:oracle:\w{1,10}:|sqlplus\s{1,4})[^\s/@]{1,80}/(?P<secret>[^\s@]{1,256})@",
    ),
    _rule(
        "://",
        find=r"://(?P<secret>(?=[\w.~%\-]{0,200}\d)(?=[\w.~%\-]{0,200}[A-Za-z])[\w.~%\-]{16,256})(?=@|:x-oauth-basic@)",
    ),
    _rule("code=", find=r"[?&]code=(?=[^&\s]{0,200}[A-Za-z])(?P<secret>[^&\s\"'<>#]{8,2048})"),
    # tokens; the first rule is for tokens broken over lines
    _rule(
        "eyj",
        find=rf"(?<![\w\-])eyJ{_PART}(?:(?:{_BREAK}{_PART}){{1,40}}\.eyJ{_PART}{_MORE}|\.eyJ{_PART}(?:{_BREAK}{_PART}){{1,40}})"
        rf"\.{_PART}{_LAST}",
        flags=_CASED,
    ),
    _rule(
        *("akia", "asia"),  # the secret beside an access key's id; 40 hexadecimal digits are a commit
        find=r"(?:AKIA|ASIA)[A-Z0-9]{12,24}(?![A-Za-z0-9])[^A-Za-z0-9/+][\s\S]{0,80}?(?<![A-Za-z0-9/+=])"
        r"(?P<secret>(?![0-9a-f]{40})[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        flags=_CASED,
    ),
    _rule(
        *("basic", "auth"),
        find=r"""(?<![\w\-])(basic\s{1,8}|auth["']\s{0,4}:\s{0,4}["'])([A-Za-z0-9+/]{8,1024}={0,2})(?![A-Za-z0-9+/=])""",
        mask=_mask_basic,
    ),
    # prose and protocols; short codes count only as digits
    _rule(
        *("otp", "pin", "cvv", "cvc", "code"),
        find=rf"(?<![A-Za-z0-9]){SHORT_CODE}"
        r"(?:\\{0,8}[\"'])?\s{0,4}(?:[:=]|is\s|\s(?=\d{6}))\s{0,4}(?:\\{0,8}[\"'])?(?P<secret>\d{3,10})(?![\w.])",
    ),
    _rule(
        *(" is ", " was ", " set to ", " changed to "),
        find=r"\b(?:password|passphrase|secret|token|api key)\s(?:is|was|set to|changed to)\s[\"']?"
        r"(?P<secret>(?=[\w!@#$%^&*+\-]{0,64}\d)(?=[\w!@#$%^&*+\-]{0,64}[A-Za-z])[\w!@#$%^&*+\-]{8,256})(?![\w/.])",
    ),
    _rule(
        "credential",
        find=r"\bcredentials?\s{1,3}(?:for\s{1,3})?[\"']?[\w.@\-]{1,64}:(?!//)(?P<secret>[^\s\"'/,:]{4,256})",
    ),
    _rule(
        " for ",
        find=rf"{KEY} for \S{{1,100}}: {{0,2}}"
        r"(?P<secret>(?=[^\s\"']{0,64}\d)(?=[^\s\"']{0,64}[A-Za-z])[^\s\"']{6,256})(?!\S)",
    ),
    _rule(
        "auth", find=r"""\bauth\s?=\s?\(\s?["'][^"'\n]{1,100}["'],\s{0,4}["'](?P<secret>[^"'\n]{1,256})["']"""
    ),
    _rule(
        *("pass ", "auth ", "imap login"),
        find=r"(?:\bUSER \S{1,100}(?:\s|\\r|\\n){1,6}PASS |\bHELLO \d AUTH \S{1,100} "
        r"|\bIMAP LOGIN \S{1,100} )(?P<secret>\S{1,256})",
    ),
    # formats that are the same everywhere
    _rule(
        "-----BEGIN",
        find=r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?P<secret>.*?)(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
        flags=re.DOTALL,
    ),
    _rule(
        "://",
        find=r"""(://[^\s/:@"'<>]{0,256}:)(?!\d{1,5}(?:[/?\#]|$))(?!PASS(?:WORD)?@)(?:[^\s"'<>@:]|:(?!//)){1,2048}@(?:[^\s/?\#"'<>@]{1,256}@)?""",
        flags=_CASED,
        mask=rf"\1{MASK}@",
    ),
    _rule(
        *("hooks.slack.com", "/api/webhooks/", "webhook.office.com", "hooks.zapier.com"),
        find=r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/\d{5,24}/|webhook\.office\.com/"
        r"|hooks\.zapier\.com/hooks/catch/)"
        r"""(?P<secret>[^\s"'<>?]{1,512})""",
        flags=_CASED,
    ),
    _rule(":A", find=r"(?<!\d)\d{5,16}:(?P<secret>A[\w\-]{30,64})", flags=_CASED),  # Telegram
    _rule(
        *(".G", ".C", ".D", ".F", ".W", ".X", ".Y", ".Z"),  # Discord: the middle part is a time
        find=r"(?<![A-Za-z0-9])[MNO][A-Za-z0-9]{23,27}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{25,64}",
        flags=_CASED,
    ),
    _rule("/bot", find=r"/bot\d{5,16}:(?P<secret>[\w\-]{30,64})", flags=_CASED),
    _rule("eyJ", find=r"(?<![\w\-])eyJ[\w\-]{5,}\.[\w\-]{5,}(?:\.[\w\-]*){0,3}", flags=_CASED),
    _rule("authorization", find=_AUTHORIZATION),
    _rule(
        *("bearer", "basic"),
        find=rf"(?<![\w\-])(?:bearer|basic)\s{{1,8}}{_CHALLENGE}{_NO_KEY}"
        r"(?P<secret>(?=[\w\-.~+/]{0,64}[\d=]|[\w\-.~+/]{24})[\w\-.~+/=]{6,8192})",
    ),
    _rule(
        "cookie",
        find=r"""((?:set-)?cookie\d?(?:\\{0,8}["']){0,2}\s{0,8}[:=,](?!\s{0,8}(?:none|null)\b)\s{0,8}(?:b(?=["']))?)(?:("|')(?:(?!\2)[^\r\n])*|(?!["'])[^\r\n"']+)""",
        mask=rf"\1\2{MASK}",
    ),
    _rule(*_PREFIXES, find=rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})", flags=_CASED),
    _rule(
        "=",
        find=r"""(?:[?&]|&amp;|%3F|%26)(?!(?:next|page|continuation|sync|skip|sort)[\w\-]{0,12}(?:token|key)=)"""
        r"""(?:[\w\-.]{0,32}(?:key|token|secret|sig|signature|password|pwd|passwd|auth|"""
        r"""credential|sas|assertion|jwt|code_verifier|session_?id))(?:=|%3D)(?P<secret>[^&\s\#"'<>]{1,8192})""",
    ),
    _rule("ignature", find=r"signature\s?[=:]\s?(?P<secret>[A-Za-z0-9+/%]{24,1024}={0,2})"),
    _rule("key provided", find=r"api key provided:?\s{1,4}(?P<secret>[^\s,;\"']{4,512})"),
    SecretRule(KEY_TRIGGERS, mask_pairs),
)
