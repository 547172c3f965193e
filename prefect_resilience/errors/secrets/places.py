"""Secrets that only their place gives away: in YAML, XML, SQL, commands, URLs, and pydantic's errors.

Each place is a pair of triggers (lower-case; one of them is in the text, or the place is skipped) and the
function that masks. Repeats are bounded, so that time stays linear.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from functools import partial

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.secrets.pairs import KEY, MASK, TAIL

Place = tuple[tuple[str, ...], Callable[[str], str]]

_I = re.IGNORECASE
_SEPARATOR = r"""(?:[\s"',\[]{1,6})"""


def _groups(pattern: str, flags: re.RegexFlag = _I) -> Callable[[str], str]:
    """Masks what the group `secret` matched."""
    compiled = Regex(pattern, flags)

    def masked(match: re.Match[str]) -> str:
        start, end = (position - match.start() for position in match.span("secret"))
        return match[0][:start] + MASK + match[0][end:]

    return partial(compiled.sub, masked)


# --- YAML, Kubernetes, XML


def _block(start: str, newline: str, character: str) -> Regex:
    return Regex(
        rf"{start}(?P<indent>[ \t]{{0,80}})(?P<head>(?:- )?[\"']?[\w.\-]{{0,40}}{KEY}{TAIL}[\"']?"
        rf"[ \t]{{0,8}}:[ \t]{{0,8}}[|>][-+\d]{{0,3}}[ \t]{{0,8}}{newline})"
        rf"(?P<body>(?:(?P=indent)[ \t]{{1,40}}{character}*(?P<end>{newline}|(?!{character}))"
        rf"|[ \t]*{newline})+)",
        re.IGNORECASE | re.MULTILINE,
    )


_BLOCK = _block("^", r"\r?\n", r"[^\n]")
# The same in a text that was quoted, by repr() or as JSON: its lines end in a backslash and an n.
_QUOTED_BLOCK = _block(
    r"""(?:(?<=\\n)|(?<=["']))""",
    r"(?:\\{1,8}r)?\\{1,8}n",
    r"""(?:(?!(?:\\{1,8}r)?\\{1,8}n|\\{0,8}["'](?:[,;:)\]}\s]|\Z))[^\n])""",
)


def _mask_block(match: re.Match[str]) -> str:
    """A block scalar: its lines become one, in the same depth."""
    depth = re.match(r"(?:\s|\\+[rn])*?([ \t]*)(?=[^ \t\\\r\n]|\Z)", match["body"])
    return f"{match['indent']}{match['head']}{depth[1] if depth else ''}{MASK}{match['end'] or ''}"


_NAME_AND_VALUE = _groups(
    rf"""\b(?:name|key)["']?\s{{0,4}}[:=]\s{{0,4}}["']?[\w.\-]{{0,60}}(?:{KEY}|authorization|cookie)"""
    r"""["']?[\s,]{1,40}["']?value["']?\s{0,4}[:=]\s{0,4}["']?(?P<secret>[^\s"',}<>]{1,2048})"""
)
_NAMED_ELEMENT = _groups(
    rf"""\bname=["'][\w:.\-]{{0,60}}{KEY}["'][^<>]{{0,200}}>\s{{0,40}}(?P<secret>[^<>\s][^<>]{{0,2048}})</"""
)
_TERRAFORM = _groups(
    rf"""\bvariable\s{{1,4}}"[\w\-]{{0,60}}{KEY}"\s{{0,4}}\{{[^{{}}]{{0,400}}?\bdefault\s{{0,8}}=\s{{0,8}}"(?P<secret>[^"\n]{{1,512}})\""""
)
_ELEMENT = _groups(
    rf"<[\w:.\-]{{0,40}}{KEY}(?:\s[^<>]{{0,200}})?>\s{{0,40}}(?P<secret>[^<>\s][^<>]{{0,2048}})</"
)

# --- pydantic and SQL

_LINE = r"(?:\n|\\{1,8}n)"
_INPUT = Regex(
    rf"(?P<where>(?:^|(?<=\\n)|(?<=[\"']))[\w.\-\[\]]{{0,120}}{KEY}{TAIL}(?:\.[^\n\\]{{1,200}})?{_LINE}"
    r"[ \t]{1,8}(?:(?!\\{1,8}n)[^\n])*?\binput_value=)[^\n]{0,400}?(?P<type>, input_type=\w{1,60}\])",
    re.IGNORECASE | re.MULTILINE,
)
# pydantic leaves out the middle of a long input, and with it the name of what follows.
_CUT_INPUT = _groups(
    r"\binput_value=[^\n]{0,60}?\.\.\.(?P<secret>[^\n]{1,60}?), input_type=(?!(?:str|bytes)\b)"
)
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
    """All parameters of a statement that names a secret column: which of them is the secret is not known,
    nor where one ends that has a quote in it."""
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


_ROW = _groups(r"\bfailing row contains \((?P<secret>[^\n]{1,8000})\)")
_INSERT = Regex(
    rf"(?P<into>\binsert into \S{{1,120}} {{0,2}}\([^()\n]{{0,400}}{KEY}[^()\n]{{0,400}}\)"
    r"\s{0,4}values\s{0,4})(?P<values>\([^\n]{0,4000})",
    _I,
)


def _mask_insert(match: re.Match[str]) -> str:
    return match["into"] + _LITERAL.sub(f"'{MASK}'", match["values"])


_DETAIL = _groups(rf"\bkey \([^()\n]{{0,200}}{KEY}[^()\n]{{0,200}}\)=\((?P<secret>[^()\n]{{1,1000}})\)")
_SET_PASSWORD = _groups(
    r"\bset\s{1,4}password(?:\s{1,4}for\s{1,4}\S{1,100})?\s{0,4}=\s{0,4}(?:password\()?'(?P<secret>[^'\n]{1,256})'"
)

# --- commands

_MYSQL = _groups(
    rf"\b(?:mysql|mysqldump|mysqladmin|mysqlimport|mariadb|mariadb-dump|mycli)\b[^\n|;]{{0,200}}?{_SEPARATOR}-p"
    r"(?P<secret>[^\s\"',\]]{2,256})"
)
_CURL = _groups(
    rf"\bcurl\b[^\n|]{{0,400}}?{_SEPARATOR}(?:-u|-U|--user|--proxy-user){_SEPARATOR}?=?[\"']?[^\s:\"']{{1,100}}:"
    r"(?P<secret>[^\s\"']{1,256})"
)
_LOGIN = _groups(
    r"(?:\b(?:docker|podman|buildah|skopeo|crane|oras|helm\s{1,4}registry|az|oc|argocd|vault)[\s\"',]{1,6}login\b"
    r"|\b(?:sshpass|sqlcmd|ldapsearch|mongo|mongosh|mongodump|mongorestore)\b)"
    rf"[^\n|;]{{0,200}}?{_SEPARATOR}-(?:p|P|w){_SEPARATOR}?(?P<secret>[^\s\"',\]]{{2,256}})",
    re.RegexFlag(0),
)
_VAULT = _groups(
    r"\bvault[\s\"',]{1,6}login[\s\"',]{1,6}(?P<secret>[^\s\"',\-=][^\s\"',=]{7,256})(?![^\s\"',])"
)
_HTTPIE = _groups(
    rf"\bhttps?\s[^\n|]{{0,200}}?{_SEPARATOR}?-a{_SEPARATOR}[^\s:\"']{{1,100}}:(?P<secret>[^\s\"']{{1,256}})"
)
_SET = _groups(
    rf"\b(?:setx?|setenv|env|arg)\s{{1,4}}[\w.\-]{{0,60}}{KEY}\s{{1,4}}[\"']?(?P<secret>(?=[^\s=]{{0,200}}\d)[^\s=:\"']{{6,512}})(?![^\s\"'])"
)
_REDIS = _groups(rf"\bredis-cli\b[^\n|;]{{0,200}}?{_SEPARATOR}-a{_SEPARATOR}(?P<secret>[^\s\"',\]]{{1,256}})")
_OPENSSL = _groups(r"-pass(?:in|out)?[\s\"',=]{1,6}pass:(?P<secret>[^\s\"']{1,256})")
_NETRC = _groups(r"\blogin\s{1,8}\S{1,100}\s{1,8}password\s{1,8}(?P<secret>\S{1,256})")

# --- connections and URLs

_BRACED = _groups(
    rf"\b(?:pwd|password)\s{{0,4}}=\s{{0,4}}(?!\{{[\w.]{{0,40}}{KEY}\}}|\{{\}})(?P<secret>\{{(?:[^}}\n]|\}}\}}){{1,512}}\}})"
)
_ORACLE = _groups(r"\b(?:jdbc:oracle:\w{1,10}:|sqlplus\s{1,4})[^\s/@]{1,80}/(?P<secret>[^\s@]{1,256})@")
_LONE_TOKEN = _groups(
    r"://(?P<secret>(?=[\w.~%\-]{0,200}\d)(?=[\w.~%\-]{0,200}[A-Za-z])[\w.~%\-]{16,256})(?=@|:x-oauth-basic@)"
)
_CODE = _groups(r"[?&]code=(?=[^&\s]{0,200}[A-Za-z])(?P<secret>[^&\s\"'<>#]{8,2048})")

# --- tokens

_BREAK = r"(?:\r?\n|\\n)[ \t]{0,8}"
_PART = r"[\w\-]{1,2048}"
_MORE = rf"(?:{_BREAK}{_PART}){{0,40}}"
_LAST = rf"(?:{_BREAK}{_PART}(?=\s|\\n|[\"']|\Z)){{0,40}}"
_BROKEN_JWT = partial(
    Regex(
        rf"(?<![\w\-])eyJ{_PART}(?:(?:{_BREAK}{_PART}){{1,40}}\.eyJ{_PART}{_MORE}|\.eyJ{_PART}(?:{_BREAK}{_PART}){{1,40}})"
        rf"\.{_PART}{_LAST}"
    ).sub,
    MASK,
)
_AWS_PAIR = Regex(
    r"((?:AKIA|ASIA)[A-Z0-9]{12,24}(?![A-Za-z0-9])[^A-Za-z0-9/+][\s\S]{0,80}?(?<![A-Za-z0-9/+=]))"
    r"([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
)
_HEX = Regex(r"[0-9a-f]{40}")


def _mask_aws(match: re.Match[str]) -> str:
    """The secret beside an access key id; 40 hexadecimal digits are a commit."""
    return match[0] if _HEX.fullmatch(match[2]) else match[1] + MASK


_BASIC = Regex(
    r"""(?<![\w\-])(basic\s{1,8}|auth["']\s{0,4}:\s{0,4}["'])([A-Za-z0-9+/]{8,1024}={0,2})(?![A-Za-z0-9+/=])""",
    _I,
)


def _mask_basic(match: re.Match[str]) -> str:
    """Basic credentials are base64 of `user:password`, which a word of prose is not."""
    try:
        plain = base64.b64decode(match[2], validate=True)
    except (binascii.Error, ValueError):
        return match[0]
    return f"{match[1]}{MASK}" if b":" in plain and plain.isascii() else match[0]


# --- prose

_PROSE = _groups(
    r"\b(?:password|passphrase|secret|token|api key)\s(?:is|was|set to|changed to)\s[\"']?"
    r"(?P<secret>(?=[\w!@#$%^&*+\-]{0,64}\d)(?=[\w!@#$%^&*+\-]{0,64}[A-Za-z])[\w!@#$%^&*+\-]{8,256})(?![\w/.])"
)
_ASKED = _groups(
    rf"{KEY} for \S{{1,100}}: {{0,2}}"
    r"(?P<secret>(?=[^\s\"']{0,64}\d)(?=[^\s\"']{0,64}[A-Za-z])[^\s\"']{6,256})(?!\S)"
)
_AUTH_PAIR = _groups(
    r"""\bauth\s?=\s?\(\s?["'][^"'\n]{1,100}["'],\s{0,4}["'](?P<secret>[^"'\n]{1,256})["']"""
)
_PROTOCOLS = _groups(
    r"(?:\bUSER \S{1,100}(?:\s|\\r|\\n){1,6}PASS |\bHELLO \d AUTH \S{1,100} |\bIMAP LOGIN \S{1,100} )"
    r"(?P<secret>\S{1,256})"
)
_CREDENTIALS = _groups(
    r"\bcredentials?\s{1,3}(?:for\s{1,3})?[\"']?[\w.@\-]{1,64}:(?!//)(?P<secret>[^\s\"'/,:]{4,256})"
)

PLACES: tuple[Place, ...] = (
    ((": |", ": >", ":|", ":>"), partial(_BLOCK.sub, _mask_block)),
    (("\\n",), partial(_QUOTED_BLOCK.sub, _mask_block)),
    (("value",), _NAME_AND_VALUE),
    (("</",), _ELEMENT),
    (("</",), _NAMED_ELEMENT),
    (("variable",), _TERRAFORM),
    (("insert into",), partial(_INSERT.sub, _mask_insert)),
    (("vault",), _VAULT),
    ((" -a ",), _HTTPIE),
    (("set ", "env ", "setenv ", "setx ", "arg "), _SET),
    (("input_value=",), partial(_INPUT.sub, r"\g<where>" + MASK + r"\g<type>")),
    (("input_value=",), _CUT_INPUT),
    (("[parameters:",), _mask_statements),
    (("failing row contains (",), _ROW),
    (("key (",), _DETAIL),
    (("password",), _SET_PASSWORD),
    (("mysql", "mariadb", "mycli"), _MYSQL),
    (("curl",), _CURL),
    (("login", "sshpass", "sqlcmd", "ldapsearch", "mongo"), _LOGIN),
    (("redis-cli",), _REDIS),
    (("pass:",), _OPENSSL),
    (("login",), _NETRC),
    (("={", "= {"), _BRACED),
    (("jdbc:oracle", "sqlplus"), _ORACLE),
    (("://",), _LONE_TOKEN),
    (("code=",), _CODE),
    (("eyj",), _BROKEN_JWT),
    (("akia", "asia"), partial(_AWS_PAIR.sub, _mask_aws)),
    (("basic", "auth"), partial(_BASIC.sub, _mask_basic)),
    ((" is ", " was ", " set to ", " changed to "), _PROSE),
    (("credential",), _CREDENTIALS),
    ((" for ",), _ASKED),
    (("auth",), _AUTH_PAIR),
    (("pass ", "auth ", "imap login"), _PROTOCOLS),
)
