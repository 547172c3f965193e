"""Known exceptions by name: `package.Class` -> what it means. Other classes are as their nearest base.

Only the outermost package of the module is written, since libraries move classes between modules. A class
that needs a closer look than its name is in `libraries`.
"""

from __future__ import annotations

import re
from itertools import takewhile

from prefect_resilience.errors.classify.http import status_category
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Finding

TIMEOUT = "TIMEOUT"
NETWORK_ERROR = "NETWORK_ERROR"

# A code for the categories whose members all mean the same to a person; elsewhere it is the class's name.
CATEGORY_CODES: dict[C, str] = {C.TIMEOUT: TIMEOUT, C.NETWORK: NETWORK_ERROR, C.CANCELLED: "CANCELLED"}

_BY_CATEGORY: dict[C, str] = {
    C.TIMEOUT: """
        builtins.TimeoutError asyncio.TimeoutError concurrent.TimeoutError socket.timeout
        multiprocessing.TimeoutError subprocess.TimeoutExpired
        httpx.TimeoutException httpx2.TimeoutException httpcore.TimeoutException httpcore2.TimeoutException
        requests.Timeout urllib3.TimeoutError aiohttp.ServerTimeoutError
        openai.APITimeoutError anthropic.APITimeoutError botocore.ConnectTimeoutError
        botocore.ReadTimeoutError
        google.RetryError grpc.FutureTimeoutError redis.TimeoutError sqlalchemy.TimeoutError
        psycopg.ConnectionTimeout psycopg.CancellationTimeout psycopg_pool.PoolTimeout
        prefect.FlowRunWaitTimeout prefect.FlowPauseTimeout
        azure.ServiceRequestTimeoutError azure.ServiceResponseTimeoutError
        pymongo.NetworkTimeout pymongo.ExecutionTimeout pymongo.WTimeoutError pymongo.WaitQueueTimeoutError
        kafka.KafkaTimeoutError kafka.RequestTimedOutError pika.AMQPHeartbeatTimeout
        elastic_transport.ConnectionTimeout opensearchpy.ConnectionTimeout
        litellm.Timeout groq.APITimeoutError google.TimeoutError snowflake.GatewayTimeoutError
        billiard.SoftTimeLimitExceeded billiard.TimeLimitExceeded
        """,
    C.NETWORK: """
        builtins.ConnectionError ssl.SSLError socket.gaierror socket.herror http.HTTPException
        asyncio.IncompleteReadError urllib.URLError urllib.ContentTooShortError
        httpx.TransportError httpx2.TransportError
        httpcore.NetworkError httpcore.ProxyError httpcore.RemoteProtocolError
        httpcore2.NetworkError httpcore2.ProxyError httpcore2.RemoteProtocolError
        requests.ConnectionError requests.ChunkedEncodingError urllib3.HTTPError
        aiohttp.ClientConnectionError aiohttp.ClientPayloadError
        openai.APIConnectionError anthropic.APIConnectionError openai.WebSocketConnectionClosedError
        botocore.HTTPClientError botocore.ConnectionError botocore.IncompleteReadError
        google.TransportError redis.ConnectionError sqlalchemy.DisconnectionError
        websockets.ConnectionClosed anyio.BrokenResourceError anyio.EndOfStream anyio.ClosedResourceError
        urllib3.NewConnectionError azure.ServiceRequestError azure.ServiceResponseError
        azure.IncompleteReadError azure.StreamClosedError pymongo.ConnectionFailure
        kafka.KafkaConnectionError kafka.NoBrokersAvailable pika.AMQPConnectionError amqp.ConnectionError
        aiormq.AMQPConnectionError aio_pika.AMQPConnectionError elastic_transport.ConnectionError
        opensearchpy.ConnectionError paramiko.NoValidConnectionsError groq.APIConnectionError
        aiosmtplib.SMTPServerDisconnected aiosmtplib.SMTPConnectError databricks.MaxRetryDurationError
        smtplib.SMTPServerDisconnected distributed.CommClosedError asyncpg.ConnectionDoesNotExistError
        imaplib.abort neo4j.SessionExpired kazoo.ConnectionLoss kazoo.SessionExpiredError
        cassandra.NoHostAvailable
        """,
    C.UNAVAILABLE: """
        requests.RetryError redis.BusyLoadingError redis.MaxConnectionsError redis.ReadOnlyError
        redis.ClusterDownError redis.TryAgainError psycopg_pool.TooManyRequests
        pymongo.NotPrimaryError pika.ConnectionBlockedTimeout pika.NackError
        snowflake.OtherHTTPRetryableError snowflake.RequestExceedMaxRetryError
        hvac.VaultDown hvac.VaultNotInitialized _duckdb.TransactionException
        """,
    C.AUTH: """
        builtins.PermissionError ssl.SSLCertVerificationError ssl.CertificateError
        aiohttp.ClientConnectorCertificateError aiohttp.ServerFingerprintMismatch
        anthropic.CredentialsError botocore.NoCredentialsError botocore.PartialCredentialsError
        botocore.CredentialRetrievalError botocore.NoAuthTokenError botocore.TokenRetrievalError
        botocore.LoginError botocore.SSOError botocore.UnauthorizedSSOTokenError
        google.DefaultCredentialsError google.RefreshError
        redis.AuthenticationError redis.AuthorizationError redis.NoPermissionError
        redis.AuthenticationWrongNumberOfArgsError
        azure.ClientAuthenticationError pika.AuthenticationError pika.ProbableAuthenticationError
        pika.ProbableAccessDeniedError kafka.AuthorizationError kafka.AuthenticationFailedError
        paramiko.AuthenticationException paramiko.BadHostKeyException
        snowflake.TokenExpiredError simple_salesforce.SalesforceAuthenticationFailed
        elastic_transport.TlsError opensearchpy.SSLError
        """,
    C.INVALID: """
        builtins.IsADirectoryError builtins.NotADirectoryError
        pydantic_core.ValidationError pydantic.ValidationError jsonschema.ValidationError
        httpx.UnsupportedProtocol httpx.LocalProtocolError httpx.TooManyRedirects httpx.InvalidURL
        httpx.CookieConflict
        httpx2.UnsupportedProtocol httpx2.LocalProtocolError httpx2.TooManyRedirects httpx2.InvalidURL
        httpcore.UnsupportedProtocol httpcore.LocalProtocolError httpcore2.UnsupportedProtocol
        httpcore2.LocalProtocolError
        requests.InvalidURL requests.InvalidSchema requests.MissingSchema requests.InvalidHeader
        requests.URLRequired requests.TooManyRedirects requests.InvalidJSONError
        requests.InvalidProxyURL
        urllib3.LocationValueError http.InvalidURL
        aiohttp.InvalidURL aiohttp.NonHttpUrlClientError aiohttp.TooManyRedirects
        openai.ContentFilterFinishReasonError
        botocore.ParamValidationError botocore.ValidationError botocore.NoRegionError
        botocore.UnknownServiceError botocore.MissingParametersError botocore.ProfileNotFound
        botocore.InvalidConfigError
        sqlalchemy.SQLAlchemyError redis.DataError
        pymongo.ConfigurationError pymongo.InvalidName pymongo.InvalidOperation bson.InvalidDocument
        pika.IncompatibleProtocolError paramiko.ConfigParseError paramiko.IncompatiblePeer
        prefect.ParameterTypeError prefect.ParameterBindError prefect.SignatureMismatchError
        prefect.SerializationError prefect.ReservedArgumentError prefect.MappingLengthMismatch
        prefect.MappingMissingIterable
        """,
    C.NOT_FOUND: """
        builtins.FileNotFoundError builtins.ModuleNotFoundError builtins.ProcessLookupError
        sqlalchemy.NoResultFound prefect.ObjectNotFound prefect.MissingResult prefect.MissingFlowError
        pika.UnroutableError hvac.InvalidPath docker.NotFound
        """,
    C.CONFLICT: """
        builtins.FileExistsError redis.WatchError redis.LockError prefect.ObjectAlreadyExists
        prefect_resilience.InDoubt
        """,
    C.RESOURCE_EXHAUSTED: """
        builtins.MemoryError openai.LengthFinishReasonError pydantic_ai.UsageLimitExceeded
        redis.OutOfMemoryError litellm.BudgetExceededError
        """,
    C.OVERFLOW: """
        pymongo.DocumentTooLarge pika.BodyTooLongError kafka.MessageSizeTooLargeError
        kafka.RecordTooLargeError kafka.RecordListTooLargeError nats.MaxPayloadError
        """,
    C.VALIDATION: """
        json.JSONDecodeError requests.JSONDecodeError httpx.DecodingError httpx2.DecodingError
        requests.ContentDecodingError aiohttp.ContentTypeError openai.APIResponseValidationError
        anthropic.APIResponseValidationError langchain_core.OutputParserException
        pydantic_ai.UnexpectedModelBehavior xml.ParseError redis.InvalidResponse
        """,
    C.TOOL_ERROR: """
        subprocess.CalledProcessError fastmcp.ToolError mcp.ToolError langchain_core.ToolException
        docker.ContainerError
        """,
    C.AGENT_CRASH: """
        concurrent.BrokenExecutor distributed.KilledWorker prefect.CrashedRun prefect.TerminationSignal
        billiard.WorkerLostError
        prefect_resilience.ProcessDied
        """,
    C.NO_PROGRESS: "prefect_resilience.NoProgress",
    C.CANCELLED: """
        asyncio.CancelledError concurrent.CancelledError builtins.KeyboardInterrupt builtins.SystemExit
        builtins.GeneratorExit grpc.FutureCancelledError prefect.CancelledRun prefect.Abort
        prefect.PrefectSignal databricks.Cancelled
        """,
    C.INFRASTRUCTURE: """
        prefect.InfrastructureError prefect.InfrastructureNotFound prefect.InfrastructureNotAvailable
        prefect.FlowRunWatchError prefect_resilience.StoreUnavailable
        """,
    C.SUBTASK: "prefect.FailedRun prefect.UpstreamTaskError prefect.UnfinishedRun prefect.PausedRun",
}

BY_NAME: dict[str, C] = {name: category for category, names in _BY_CATEGORY.items() for name in names.split()}

# Names that mean the same in whichever package they are defined, a user's own included.
BY_BARE_NAME: dict[str, C] = {
    "TimeoutError": C.TIMEOUT,
    "Timeout": C.TIMEOUT,
    "ReadTimeout": C.TIMEOUT,
    "ConnectTimeout": C.TIMEOUT,
    "TimeoutException": C.TIMEOUT,
    "RateLimitError": C.RATE_LIMIT,
    "RateLimitExceeded": C.RATE_LIMIT,
    "TooManyRequests": C.RATE_LIMIT,
    "TooManyRequestsError": C.RATE_LIMIT,
    "RequestTimeoutError": C.TIMEOUT,
    "GatewayTimeoutError": C.TIMEOUT,
    "ServerSelectionTimeoutError": C.NETWORK,
    "BadGatewayError": C.UNAVAILABLE,
    "InternalServerError": C.SERVER_ERROR,
    "ServiceUnavailable": C.UNAVAILABLE,
    "ServiceUnavailableError": C.UNAVAILABLE,
    "OverloadedError": C.UNAVAILABLE,
    "APIConnectionError": C.NETWORK,
    "ConnectError": C.NETWORK,
    "RemoteProtocolError": C.NETWORK,
    "ServerDisconnectedError": C.NETWORK,
    "ClientConnectorError": C.NETWORK,
    "EndpointConnectionError": C.NETWORK,
    "NewConnectionError": C.NETWORK,
    "ToolError": C.TOOL_ERROR,
    "ToolException": C.TOOL_ERROR,
    "ContextWindowExceededError": C.OVERFLOW,
    "ContextLengthExceeded": C.OVERFLOW,
    "MaxTurnsExceeded": C.RESOURCE_EXHAUSTED,
    "GraphRecursionError": C.RESOURCE_EXHAUSTED,
    "NoProgress": C.NO_PROGRESS,
}


# Exceptions that nobody knows, by the words in their class's name: `ConnectionLost`, `LockTimeout`.
#
# The last thing that is asked, after the whole chain of causes: a cause that is known says more than a
# name. A class that is a ValueError, a TypeError or the like reports a mistake, so its name never makes it
# retryable.

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
