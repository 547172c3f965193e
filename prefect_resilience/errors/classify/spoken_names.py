"""Exceptions that nobody knows, by the words in their class's name: `ConnectionLost`, `LockTimeout`.

The last thing that is asked, after the whole chain of causes: a cause that is known says more than a name. A
class that is a ValueError, a TypeError or the like reports a mistake, so its name never makes it retryable.
"""

from __future__ import annotations

import re
from itertools import takewhile

from prefect_resilience.errors.classify.http import status_category
from prefect_resilience.errors.classify.names import CATEGORY_CODES
from prefect_resilience.errors.info import Finding
from prefect_resilience.errors.taxonomy import ErrorCategory as C

_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, NameError)

_SPOKEN: tuple[tuple[str, C], ...] = (
    (r"(Invalid|Bad|Expired|Wrong|Missing|No)_(Token|Credential|Password|Api_Key|Auth|Signature)", C.AUTH),
    (
        r"Un_?authori[sz]ed|Un_?authenticated|Forbidden|Access_Denied|Not_Authori[sz]ed|Permission_?Denied",
        C.AUTH,
    ),
    (r"(Permission|Authentication|Authori[sz]ation|Auth|Login)_(Failed|Failure|Error|Exception)", C.AUTH),
    (r"Rate_?Limit|Too_Many_Requests|Throttl|Flood_(Wait|Control)|Slow_?Down", C.RATE_LIMIT),
    (r"Invalid|Bad_Request|Malformed|Unsupported|Syntax|Parser?_|Validation|Config", C.INVALID),
    (r"Not_Found|No_Such|Does_Not_Exist|Unknown_(Host|Topic|Table)|No_Node\b|No_Node_Error", C.NOT_FOUND),
    (r"^(Programming|Data|Not_Supported)_Error$", C.INVALID),  # PEP 249
    (
        r"Already_Exists|Conflict|Duplicate|Node_Exists|Bad_Version|Constraint|Integrity|Version_Mismatch",
        C.CONFLICT,
    ),
    (
        r"Dead_?lock|Serialization_(Failure|Error)|Lock_Wait|Not_A?_?Leader|Retry_?able|Try_Again",
        C.UNAVAILABLE,
    ),
    (r"Time_?out|Timed_Out|Deadline_Exceeded|Time_Limit", C.TIMEOUT),
    (r"Out_Of_Memory|Memory_Limit|Quota_Exceeded|Disk_Full|No_Space", C.RESOURCE_EXHAUSTED),
    (
        r"Unavailable|Over_?load|Bad_Gateway|(Server|Service|Is)_Busy|Busy_(Error|Result)\b|Bootstrapping",
        C.UNAVAILABLE,
    ),
    (
        r"Temporar(y|ily)|Transient|^Aborted|No_Responders|Server_Down|Shutting_Down|Maintenance",
        C.UNAVAILABLE,
    ),
    (
        r"Connect(ion)?_?(Lost|Loss|Closed|Error|Failed|Failure|Reset|Refused|Aborted|Broken|Interrupted)",
        C.NETWORK,
    ),
    (r"(?<!Neural_)Network_(Error|Exception|Failure|Unreachable)|Disconnect|Stale_Connection", C.NETWORK),
    (r"No_(Host|Servers?|Brokers?)_", C.NETWORK),
    (r"Socket_(Open|Receive|Send|Error|Closed)|Transport_(Closed|Error|Connection)|Broken_Pipe", C.NETWORK),
    (r"Connection_Exception|Communication_(Error|Exception|Link)", C.NETWORK),
    (r"Internal_Server_|Server_(Error|Exception)\b", C.SERVER_ERROR),
    (r"Worker_Lost|Process_Died|Killed_Worker", C.AGENT_CRASH),
)
_PATTERNS = tuple((re.compile(words), category) for words, category in _SPOKEN)
_STATUS = re.compile(r"(?i)\bhttp_?(\d{3})")
_LONGEST = 100


def spoken_finding(error: BaseException) -> Finding | None:
    """What the names of a class and its bases say, the nearest first; None if they say nothing."""
    for cls in takewhile(lambda one: one.__module__ != "builtins", type(error).__mro__):
        found = _spoken(cls.__name__)
        if found is not None:
            return None if found.category.retryable and isinstance(error, _MISTAKES) else found
    return None


def _spoken(name: str) -> Finding | None:
    if len(name) > _LONGEST:
        return None
    words = in_words(name)
    status = _STATUS.search(words)
    if status is not None:
        category = status_category(int(status[1]))
        return None if category is None else Finding(category, status[1])
    said = next((category for pattern, category in _PATTERNS if pattern.search(words)), None)
    return None if said is None else Finding(said, CATEGORY_CODES.get(said))


def in_words(name: str) -> str:
    """A class's name with `_` between its words: `HTTPTimeoutError` -> `HTTP_Timeout_Error`.

    Example:
        >>> in_words("LDAPSocketReceiveError")
        'LDAP_Socket_Receive_Error'
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return "_".join(word[:1].upper() + word[1:] for word in parted.split("_") if word)
