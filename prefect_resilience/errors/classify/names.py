"""Known exceptions by name: `package.Class` -> category. Other classes take that of their nearest base.

Only the outermost package of the module is given, since libraries move classes between modules. Classes that
need more than a name are in `libraries`. Below: rules for unknown names, and for texts.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from itertools import takewhile

from prefect_resilience.base.regexes import Regex
from prefect_resilience.errors.classify.http import (
    OVERFLOW_CODE,
    WAITING,
    says_lost_race,
    says_overflow,
    says_spent,
    says_too_large,
    status_category,
)
from prefect_resilience.errors.classify.retry_after import wait_in_text
from prefect_resilience.errors.taxonomy import CATEGORY_CODES, Opinion, coded, found_by_words, worded
from prefect_resilience.errors.taxonomy import ErrorCategory as C

BY_NAME = coded(
    timeout="""builtins.TimeoutError asyncio.TimeoutError concurrent.TimeoutError socket.timeout
        multiprocessing.TimeoutError subprocess.TimeoutExpired httpx.TimeoutException httpx2.TimeoutException
        httpcore.TimeoutException httpcore2.TimeoutException requests.Timeout urllib3.TimeoutError
        aiohttp.ServerTimeoutError openai.APITimeoutError anthropic.APITimeoutError
        botocore.ConnectTimeoutError botocore.ReadTimeoutError google.RetryError grpc.FutureTimeoutError
        redis.TimeoutError sqlalchemy.TimeoutError psycopg.ConnectionTimeout psycopg.CancellationTimeout
        psycopg_pool.PoolTimeout prefect.FlowRunWaitTimeout prefect.FlowPauseTimeout
        azure.ServiceRequestTimeoutError azure.ServiceResponseTimeoutError pymongo.NetworkTimeout
        pymongo.ExecutionTimeout pymongo.WTimeoutError pymongo.WaitQueueTimeoutError kafka.KafkaTimeoutError
        kafka.RequestTimedOutError pika.AMQPHeartbeatTimeout elastic_transport.ConnectionTimeout
        opensearchpy.ConnectionTimeout litellm.Timeout groq.APITimeoutError google.TimeoutError
        snowflake.GatewayTimeoutError billiard.SoftTimeLimitExceeded billiard.TimeLimitExceeded""",
    network="""builtins.ConnectionError ssl.SSLError socket.gaierror socket.herror http.HTTPException
        asyncio.IncompleteReadError urllib.URLError urllib.ContentTooShortError httpx.TransportError
        httpx2.TransportError httpcore.NetworkError httpcore.ProxyError httpcore.RemoteProtocolError
        httpcore2.NetworkError httpcore2.ProxyError httpcore2.RemoteProtocolError requests.ConnectionError
        requests.ChunkedEncodingError urllib3.HTTPError aiohttp.ClientConnectionError
        aiohttp.ClientPayloadError openai.APIConnectionError anthropic.APIConnectionError
        openai.WebSocketConnectionClosedError botocore.HTTPClientError botocore.ConnectionError
        botocore.IncompleteReadError google.TransportError redis.ConnectionError sqlalchemy.DisconnectionError
        websockets.ConnectionClosed anyio.BrokenResourceError anyio.EndOfStream anyio.ClosedResourceError
        urllib3.NewConnectionError azure.ServiceRequestError azure.ServiceResponseError
        azure.IncompleteReadError azure.StreamClosedError pymongo.ConnectionFailure kafka.KafkaConnectionError
        kafka.NoBrokersAvailable pika.AMQPConnectionError amqp.ConnectionError aiormq.AMQPConnectionError
        aio_pika.AMQPConnectionError elastic_transport.ConnectionError opensearchpy.ConnectionError
        paramiko.NoValidConnectionsError groq.APIConnectionError aiosmtplib.SMTPServerDisconnected
        aiosmtplib.SMTPConnectError databricks.MaxRetryDurationError smtplib.SMTPServerDisconnected
        distributed.CommClosedError asyncpg.ConnectionDoesNotExistError imaplib.abort neo4j.SessionExpired
        kazoo.ConnectionLoss kazoo.SessionExpiredError cassandra.NoHostAvailable""",
    unavailable="""requests.RetryError redis.BusyLoadingError redis.MaxConnectionsError redis.ReadOnlyError
        redis.ClusterDownError redis.TryAgainError psycopg_pool.TooManyRequests pymongo.NotPrimaryError
        pika.ConnectionBlockedTimeout pika.NackError snowflake.OtherHTTPRetryableError
        snowflake.RequestExceedMaxRetryError hvac.VaultDown hvac.VaultNotInitialized
        _duckdb.TransactionException""",
    auth="""builtins.PermissionError ssl.SSLCertVerificationError ssl.CertificateError
        aiohttp.ClientConnectorCertificateError aiohttp.ServerFingerprintMismatch anthropic.CredentialsError
        botocore.NoCredentialsError botocore.PartialCredentialsError botocore.CredentialRetrievalError
        botocore.NoAuthTokenError botocore.TokenRetrievalError botocore.LoginError botocore.SSOError
        botocore.UnauthorizedSSOTokenError google.DefaultCredentialsError google.RefreshError
        redis.AuthenticationError redis.AuthorizationError redis.NoPermissionError
        redis.AuthenticationWrongNumberOfArgsError azure.ClientAuthenticationError pika.AuthenticationError
        pika.ProbableAuthenticationError pika.ProbableAccessDeniedError kafka.AuthorizationError
        kafka.AuthenticationFailedError paramiko.AuthenticationException paramiko.BadHostKeyException
        snowflake.TokenExpiredError simple_salesforce.SalesforceAuthenticationFailed
        elastic_transport.TlsError opensearchpy.SSLError""",
    invalid="""builtins.IsADirectoryError builtins.NotADirectoryError pydantic_core.ValidationError
        pydantic.ValidationError jsonschema.ValidationError httpx.UnsupportedProtocol httpx.LocalProtocolError
        httpx.TooManyRedirects httpx.InvalidURL httpx.CookieConflict httpx2.UnsupportedProtocol
        httpx2.LocalProtocolError httpx2.TooManyRedirects httpx2.InvalidURL httpcore.UnsupportedProtocol
        httpcore.LocalProtocolError httpcore2.UnsupportedProtocol httpcore2.LocalProtocolError
        requests.InvalidURL requests.InvalidSchema requests.MissingSchema requests.InvalidHeader
        requests.URLRequired requests.TooManyRedirects requests.InvalidJSONError requests.InvalidProxyURL
        urllib3.LocationValueError http.InvalidURL aiohttp.InvalidURL aiohttp.NonHttpUrlClientError
        aiohttp.TooManyRedirects openai.ContentFilterFinishReasonError botocore.ParamValidationError
        botocore.ValidationError botocore.NoRegionError botocore.UnknownServiceError
        botocore.MissingParametersError botocore.ProfileNotFound botocore.InvalidConfigError
        sqlalchemy.SQLAlchemyError redis.DataError pymongo.ConfigurationError pymongo.InvalidName
        pymongo.InvalidOperation bson.InvalidDocument pika.IncompatibleProtocolError paramiko.ConfigParseError
        paramiko.IncompatiblePeer prefect.ParameterTypeError prefect.ParameterBindError
        prefect.SignatureMismatchError prefect.SerializationError prefect.ReservedArgumentError
        prefect.MappingLengthMismatch prefect.MappingMissingIterable""",
    not_found="""builtins.FileNotFoundError builtins.ModuleNotFoundError builtins.ProcessLookupError
        sqlalchemy.NoResultFound prefect.ObjectNotFound prefect.MissingResult prefect.MissingFlowError
        pika.UnroutableError hvac.InvalidPath docker.NotFound""",
    conflict="""builtins.FileExistsError redis.WatchError redis.LockError prefect.ObjectAlreadyExists
        prefect_resilience.InDoubt""",
    resource_exhausted="""builtins.MemoryError openai.LengthFinishReasonError pydantic_ai.UsageLimitExceeded
        redis.OutOfMemoryError litellm.BudgetExceededError""",
    overflow="""pymongo.DocumentTooLarge pika.BodyTooLongError kafka.MessageSizeTooLargeError
        kafka.RecordTooLargeError kafka.RecordListTooLargeError nats.MaxPayloadError""",
    validation="""json.JSONDecodeError requests.JSONDecodeError httpx.DecodingError httpx2.DecodingError
        requests.ContentDecodingError aiohttp.ContentTypeError openai.APIResponseValidationError
        anthropic.APIResponseValidationError langchain_core.OutputParserException
        pydantic_ai.UnexpectedModelBehavior xml.ParseError redis.InvalidResponse""",
    tool_error="""subprocess.CalledProcessError fastmcp.ToolError mcp.ToolError langchain_core.ToolException
        docker.ContainerError""",
    agent_crash="""concurrent.BrokenExecutor distributed.KilledWorker prefect.CrashedRun
        prefect.TerminationSignal billiard.WorkerLostError prefect_resilience.ProcessDied""",
    no_progress="prefect_resilience.NoProgress",
    cancelled="""asyncio.CancelledError concurrent.CancelledError builtins.KeyboardInterrupt
        builtins.SystemExit builtins.GeneratorExit grpc.FutureCancelledError prefect.CancelledRun
        prefect.Abort prefect.PrefectSignal databricks.Cancelled""",
    infrastructure="""prefect.InfrastructureError prefect.InfrastructureNotFound
        prefect.InfrastructureNotAvailable prefect.FlowRunWatchError prefect_resilience.StoreUnavailable""",
    subtask="prefect.FailedRun prefect.UpstreamTaskError prefect.UnfinishedRun prefect.PausedRun",
)

# Names that mean the same in every package, also in the user's own.
BY_BARE_NAME = coded(
    timeout="""TimeoutError Timeout ReadTimeout ConnectTimeout TimeoutException RequestTimeoutError
        GatewayTimeoutError""",
    rate_limit="RateLimitError RateLimitExceeded TooManyRequests TooManyRequestsError",
    unavailable="BadGatewayError ServiceUnavailable ServiceUnavailableError OverloadedError",
    server_error="InternalServerError",
    network="""ServerSelectionTimeoutError APIConnectionError ConnectError RemoteProtocolError
        ServerDisconnectedError ClientConnectorError EndpointConnectionError NewConnectionError""",
    tool_error="ToolError ToolException",
    overflow="ContextWindowExceededError ContextLengthExceeded",
    resource_exhausted="MaxTurnsExceeded GraphRecursionError",
    no_progress="NoProgress",
)


# Unknown exceptions, by the words in their class's name: `ConnectionLost`, `LockTimeout`.
#
# The last resort, after the whole chain of causes: a known cause is more exact than a name. A ValueError, a
# TypeError or the like reports a mistake, so its name never makes it retryable.

_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, NameError)

# The last `invalid` rule has the class names of PEP 249.
_SPOKEN = worded(r"""
    auth               -             (Invalid|Bad|Expired|Wrong|Missing|No)_(Token|Credential|Password|Auth)
    auth               -             (Invalid|Bad|Expired|Wrong|Missing|No)_(Api_Key|Signature)
    auth               -             Un_?authori[sz]ed|Un_?authenticated|Forbidden|Access_Denied
    auth               -             Not_Authori[sz]ed|Permission_?Denied
    auth               -             (Permission|Auth(entication|ori[sz]ation)?|Login)_(Failed|Failure)
    auth               -             (Permission|Auth(entication|ori[sz]ation)?|Login)_(Error|Exception)
    rate_limit         -             Rate_?Limit|Too_Many_Requests|Throttl|Flood_(Wait|Control)|Slow_?Down
    invalid            -             Invalid|Bad_Request|Malformed|Unsupported|Syntax|Parser?_
    invalid            -             Validation|Config
    not_found          -             Not_Found|No_Such|Does_Not_Exist|Unknown_(Host|Topic|Table)
    not_found          -             No_Node\b|No_Node_Error
    invalid            -             ^(Programming|Data|Not_Supported)_Error$
    conflict           -             Already_Exists|Conflict|Duplicate|Node_Exists|Bad_Version|Constraint
    conflict           -             Integrity|Version_Mismatch
    unavailable        -             Dead_?lock|Serialization_(Failure|Error)|Lock_Wait|Not_A?_?Leader
    unavailable        -             Retry_?able|Try_Again
    timeout            TIMEOUT       Time_?out|Timed_Out|Deadline_Exceeded|Time_Limit
    resource_exhausted -             Out_Of_Memory|Memory_Limit|Quota_Exceeded|Disk_Full|No_Space
    unavailable        -             Unavailable|Over_?load|Bad_Gateway|(Server|Service|Is)_Busy
    unavailable        -             Busy_(Error|Result)\b|Bootstrapping|Temporar(y|ily)|Transient|^Aborted
    unavailable        -             No_Responders|Server_Down|Shutting_Down|Maintenance
    network            NETWORK_ERROR Connect(ion)?_?(Lost|Loss|Closed|Error|Failed|Failure|Reset|Refused)
    network            NETWORK_ERROR Connect(ion)?_?(Aborted|Broken|Interrupted)
    network            NETWORK_ERROR (?<!Neural_)Network_(Error|Exception|Failure|Unreachable)|Disconnect
    network            NETWORK_ERROR Stale_Connection|No_(Host|Servers?|Brokers?)_|Connection_Exception
    network            NETWORK_ERROR Communication_(Error|Exception|Link)|Socket_(Open|Receive|Send)
    network            NETWORK_ERROR Socket_(Error|Closed)|Transport_(Closed|Error|Connection)|Broken_Pipe
    server_error       -             Internal_Server_|Server_(Error|Exception)\b
    agent_crash        -             Worker_Lost|Process_Died|Killed_Worker
""")


def spoken_finding(error: BaseException) -> Opinion | None:
    """An opinion from the names of a class and its bases, the nearest first; None if they give none."""
    for cls in takewhile(lambda one: one.__module__ != "builtins", type(error).__mro__):
        found = _spoken(cls.__name__)
        if found is not None:
            return None if found.category.retryable and isinstance(error, _MISTAKES) else found
    return None


def _spoken(name: str) -> Opinion | None:
    if len(name) > 100:
        return None
    words = in_words(name)
    status = re.search(r"(?i)\bhttp_?(\d{3})", words)
    if status is not None:
        category = status_category(int(status[1]))
        return None if category is None else Opinion(category, status[1])
    said = next((rule for rule in _SPOKEN if re.search(rule[0], words)), None)
    return None if said is None else Opinion(said[1], said[2])


def in_words(name: str) -> str:
    """A class's name with `_` between its words: `HTTPTimeoutError` -> `HTTP_Timeout_Error`.

    Example:
        >>> in_words("LDAPSocketReceiveError")
        'LDAP_Socket_Receive_Error'
    """
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return "_".join(word[:1].upper() + word[1:] for word in parted.split("_") if word)


# -- texts: a message without its exception

# "Task run encountered an exception ConnectionRefusedError: [Errno 111] ...", a line of a traceback, or
# "step 'load' failed: ConnectionResetError: ...".
_EXCEPTION = Regex(
    r"(?:encountered an exception:?\s{1,3}|^|[:;(\[]\s{0,3}['\"]?)"
    r"((?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{2,80})(?::(?=\s|$)|\(['\"]|$|\s*$)",
    re.MULTILINE,
)
_STATUS = Regex(
    r"(?:\b(?:status(?: code)?|HTTP(?:/\d(?:\.\d)?)?|error(?: code)?|code)[ :='\"]{1,3}|^['\"]?)([45]\d\d)\b"
    r"|\b([45]\d\d) (?-i:[A-Z][a-z])",
    re.IGNORECASE,
)
_WORDS = worded(r"""
    rate_limit         429           rate.?limit|too many requests|throttl|exceeded your current quota
    unavailable        503           overloaded|service unavailable|bad gateway|temporarily unavailable
    unavailable        503           try again later|(?:high|experiencing) (?:demand|load)
    unavailable        503           (?:at|over|insufficient) capacity
    timeout            TIMEOUT       timed? ?out|deadline exceeded
    network            NETWORK_ERROR connection (?:refused|reset|aborted|closed|error)
    network            NETWORK_ERROR name or service not known|name resolution|network is unreachable
    network            NETWORK_ERROR no route to host|broken pipe|server disconnected
    unavailable        -             database is locked|could not serialize
    auth               -             unauthori[sz]ed|forbidden|permission denied|authentication failed
    auth               -             invalid api key
    server_error       500           internal server error|server had an error
    server_error       500           error while processing your request
    resource_exhausted -             out of memory|oomkilled
""")
_LIMIT = 8_000


def _builtins() -> Iterator[tuple[str, C]]:
    """Built-in exceptions by their bare names, each with the category of its nearest known base."""
    for name, cls in vars(builtins).items():
        if isinstance(cls, type) and issubclass(cls, BaseException):
            bases = (f"builtins.{base.__name__}" for base in cls.__mro__)
            category = next((BY_NAME[base] for base in bases if base in BY_NAME), None)
            if category is not None:
                yield name, category


_NAMES = {**BY_BARE_NAME, **dict(_builtins())}


def text_finding(text: str) -> Opinion | None:
    """An opinion from the text of a failure; None if it has no known words."""
    text = text[:_LIMIT]
    if says_overflow(text):
        return Opinion(C.OVERFLOW, OVERFLOW_CODE)
    if says_too_large(text):
        return Opinion(C.OVERFLOW, "MESSAGE_TOO_LARGE", details={"resource": "message"})
    wait = wait_in_text(text)
    if wait is None and ("insufficient_quota" in text or says_spent(text)):
        return Opinion(C.RESOURCE_EXHAUSTED, "insufficient_quota")
    found = _exception_in(text) or _status_in(text) or _words_in(text)
    if found is not None and found.category in WAITING:
        return found._replace(retry_after=wait)
    return found


def _status_in(text: str) -> Opinion | None:
    status = next((int(match[1] or match[2]) for match in _STATUS.finditer(text)), None)
    category = status_category(status) if status else None
    return Opinion(category, str(status), details={"status": status}) if category else None


def _words_in(text: str) -> Opinion | None:
    if says_lost_race(text):
        return Opinion(C.UNAVAILABLE)
    return found_by_words(_WORDS, text)


def _exception_in(text: str) -> Opinion | None:
    """The first exception with a known name in the text, such as in the last line of a traceback."""
    for match in _EXCEPTION.finditer(text):
        head, _, name = match[1].rpartition(".")
        category = BY_NAME.get(f"{head.partition('.')[0]}.{name}") if head else _NAMES.get(name)
        category = category or BY_BARE_NAME.get(name)
        if category is not None:
            return Opinion(category, CATEGORY_CODES.get(category, name))
    return None
