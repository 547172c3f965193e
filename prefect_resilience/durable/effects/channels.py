"""What a function may send through without an audit event: drivers in C, and connections that are open.

The search begins at the function and its arguments, and follows what their code names: globals, closures,
imports, the user's own modules and classes, and the objects in these. Where it ends, the function cannot send
either, as far as that can be told without running it.
"""

from __future__ import annotations

import dis
import gc
import importlib.util
import io
import socket
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, cast

from prefect_resilience.durable.effects.current import send_idempotency_key
from prefect_resilience.durable.effects.witness import names

DRIVERS = names(
    """
    psycopg psycopg2 psycopg_c psycopg_binary psycopg_pool psycopg2cffi aiopg pgdb _pg
    oracledb cx_Oracle pyodbc aioodbc turbodbc pymssql _mssql mssql_python ibm_db hdbcli teradatasql fdb
    MySQLdb _mysql mysql.connector _mysql_connector mariadb jaydebeapi jpype firebird
    adbc_driver_manager connectorx aerospike couchbase cassandra glide glide_sync
    grpc temporalio.bridge ray capnp zmq pynng confluent_kafka pulsar _pulsar proton cproton pymqi solace
    pycurl curl_cffi primp rnet tls_client awscrt obstore uvloop winloop
    ssh2 pylibsshext pygit2 ldap bonsai smbc serial usb playwright
    """
)
"""Modules whose C code makes network calls of its own; they count if a library that the function uses uses
them, too."""

_DIRECT = names(
    """
    ctypes _ctypes cffi _cffi_backend duckdb pyarrow polars deltalake lancedb lance datafusion chdb
    sqlalchemy prefect_sqlalchemy django.db peewee tortoise piccolo
    lmdb plyvel rocksdb h5py netCDF4 tables cv2 osgeo rasterio fiona pyogrio tiledb
    """
)
"""Modules that can do much else: they count only if the user's own code names them."""

_OBJECTS = DRIVERS | names("ctypes _ctypes sqlite3 multiprocessing.connection mmap")
_OWN = names("prefect prefect_resilience")
_WITNESSED = _OWN | names("http smtplib ftplib imaplib poplib logging")
"""Modules of objects that are not searched, nor are those of derived classes: audit events show what they
send, or it is a log."""
_ENTANGLED = names("asyncio threading opentelemetry sentry_sdk structlog loguru logfire")
"""Modules of objects that are not searched, because they lead to what others use."""
_APART = _WITNESSED | _ENTANGLED
_NAMED = (ModuleType, type, FunctionType, BuiltinFunctionType)
_VALUES = (str, bytes, int, float, complex, bool, type(None))
_ATOMS = (*_VALUES, CodeType, FrameType, TracebackType, GetSetDescriptorType, MemberDescriptorType)
_ALL_NAMES = names("globals __globals__")
_ANY_NAME = _ALL_NAMES | names("getattr vars locals __dict__ attrgetter methodcaller")
_NO_NAMES, _MAKING = names(""), names("__init__ __new__ __post_init__")
_PLAIN = frozenset(dir(object)) | _MAKING | names("__dataclass_fields__ __del__")
"""Methods that an object has for its creation, and to be compared and shown."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
MOST_OBJECTS, MOST_MODULES = 50_000, 3_000


def find_unwatched_channel(*roots: object) -> str | None:
    """A driver or an open connection that the code of these objects may use; None if there is none."""
    try:
        channel = _ChannelSearch(roots).found()
    except Exception as error:  # noqa: BLE001 - raised by an object of the user
        channel = f"objects that cannot be searched ({type(error).__name__})"
    return None if channel is None else f"perhaps by {channel}"


class _ChannelSearch:
    def __init__(self, roots: tuple[object, ...]) -> None:
        self.waiting = deque(roots)
        streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self.known: dict[int, object] = {id(stream): stream for stream in streams}
        self.libraries: set[str] = set()
        self.classes: set[type] = set()
        self.used: set[str] = set()
        """The names in all code so far."""
        self.unused: defaultdict[str, list[object]] = defaultdict(list)
        """Members of the user's objects, classes and modules that no code has named so far."""
        function = next(iter(roots), None)
        function = getattr(function, "__func__", getattr(function, "func", function))
        self.homes = {_top(_module_of(function))}

    def found(self) -> str | None:
        while self.waiting:
            thing = self.waiting.popleft()
            if _is(thing, *_ATOMS) or id(thing) in self.known:
                continue
            if len(self.known) >= MOST_OBJECTS:
                return f"more than {MOST_OBJECTS} objects that it may use"
            self.known[id(thing)] = thing
            if type(thing) in _CONTAINERS:
                self.waiting.extend(gc.get_referents(thing))
                continue
            channel = self.channel(thing)
            if channel is not None:
                return channel
            self.waiting.extend(self.beyond(thing))
        return None

    def channel(self, thing: object) -> str | None:
        """What makes this thing a channel of its own."""
        if _is(thing, *_NAMED):
            module = _module_of(thing)
            return _entry_of(module, DRIVERS | _DIRECT) or self.through(module)
        for base in type(thing).__mro__:
            if (driver := _entry_of(base.__module__, _OBJECTS)) is not None:
                return driver
        return _open_connection(thing) or self.through(type(thing).__module__)

    def through(self, module: str) -> str | None:
        """The driver that a library uses, by what its modules import."""
        waiting = [module]
        while waiting and len(self.libraries) < MOST_MODULES:
            name = waiting.pop()
            if name in self.libraries or not self.is_library(name):
                continue
            self.libraries.add(name)
            driver, used = _used_by(name, len(vars(sys.modules[name])))
            if driver is not None:
                return f"{driver} (used by {module})"
            waiting.extend(used - self.libraries)
        return None

    def is_library(self, module: str) -> bool:
        top = _top(module)
        if top in self.homes or top in _APART or top in sys.stdlib_module_names:
            return False
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        return "site-packages" in file or "dist-packages" in file

    def is_users(self, module: str) -> bool:
        top = _top(module)
        return not (self.is_library(module) or top in _APART or top in sys.stdlib_module_names)

    def beyond(self, thing: Any) -> Iterator[object]:
        """What this thing leads to."""
        if _is(thing, FunctionType):
            yield from (thing.__dict__, thing.__defaults__, thing.__kwdefaults__)
            for cell in thing.__closure__ or ():
                with suppress(ValueError):  # not filled yet
                    yield cell.cell_contents
            if self.is_users(_module_of(thing)):
                yield from self.named(thing)
        elif _is(thing, type):
            yield from self.of_class(thing, _MAKING)
        elif _is(thing, ModuleType):
            if self.is_users(thing.__name__):
                yield from self.members(vars(thing), _NO_NAMES)
        elif _is(thing, BuiltinFunctionType):
            yield thing.__self__
        elif _is(thing, threading.local):
            yield vars(thing)
        elif _is(thing, ContextVar):
            yield thing.get(None)
        elif self.is_witnessed(thing):
            return
        elif _top_modules(thing) & _OWN:
            yield from (getattr(thing, name, None) for name in ("fn", "func", "__wrapped__"))
        elif not (_top_modules(thing) & _WITNESSED or _top(type(thing).__module__) in _ENTANGLED):
            yield from self.inside(thing)

    def is_witnessed(self, thing: Any) -> bool:
        """Whether it is an httpx client with the hook that shows its requests to the witness."""
        with suppress(Exception):
            if _top_modules(thing) & {"httpx", "httpx2"}:
                hooks = thing.event_hooks["request"]
                reached = [*hooks, *(part for hook in hooks for part in self.beyond(hook))]
                return any(part is send_idempotency_key for part in reached)
        return False

    def named(self, function: FunctionType) -> Iterator[object]:
        """What the code of a function names: globals, imported modules, and members that wait for a name."""
        scope = function.__globals__
        used, imported = _names_in(function.__code__, scope.get("__package__") or "")
        yield from scope.values() if used & _ALL_NAMES else (scope[name] for name in used if name in scope)
        yield from (sys.modules[name] for name in imported if name in sys.modules)
        if not used.isdisjoint(_ANY_NAME):
            used |= self.unused.keys()
        for name in used - self.used:
            self.used.add(name)
            yield from self.unused.pop(name, ())

    def members(self, things: Any, also: frozenset[str]) -> Iterator[object]:
        """The members that code names; the others wait until code names them."""
        is_any = not self.used.isdisjoint(_ANY_NAME)
        for name, thing in [*things.items()]:
            by_syntax = name.startswith("__") and name not in _PLAIN
            if is_any or by_syntax or name in self.used or name in also:
                yield thing
            else:
                self.unused[name].append(thing)

    def of_class(self, cls: Any, also: frozenset[str]) -> Iterator[object]:
        """What the methods of a class lead to: those that code names or syntax calls, and those in `also`."""
        for base in cls.__mro__:
            if self.is_users(base.__module__):
                yield from self.members(vars(base), also)
            elif base is not cls:
                yield base

    def inside(self, thing: Any) -> Iterator[object]:
        """What an object refers to."""
        inside, cls = gc.get_referents(thing), cast("type[Any]", type(thing))
        if self.is_users(cls.__module__):
            if cls not in self.classes:
                self.classes.add(cls)
                yield from self.of_class(cls, _NO_NAMES)
            members: dict[str, object] = getattr(thing, "__dict__", {})
            yield from self.members(members, _NO_NAMES)
            apart = {id(cls), id(members), *map(id, members.values())}
            inside = [referent for referent in inside if id(referent) not in apart]
        yield from inside


@lru_cache(maxsize=20_000)
def _used_by(module: str, size: int) -> tuple[str | None, frozenset[str]]:
    """The modules of the `size` things in a module, and a driver among them."""
    used = frozenset(_module_of(item) for item in [*vars(sys.modules[module]).values()] if _is(item, *_NAMED))
    return next(filter(None, (_entry_of(item, DRIVERS) for item in used)), None), used


def _names_in(code: CodeType, package: str) -> tuple[set[str], set[str]]:
    """The names in a function's code, and the modules that it may import."""
    used, imported = set[str](), set[str]()
    loaded: list[Any] = [0, 0]
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":  # after its level and its names
            name, level = str(step.argval), loaded[-2]
            with suppress(ImportError):
                name = importlib.util.resolve_name("." * level + name, package)
            imported |= {name, *(f"{name}.{attribute}" for attribute in code.co_names)}
        elif step.opcode in dis.hasname and not step.opname.startswith("STORE"):
            used.add(step.argval)
        loaded.append(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            more_used, more_imported = _names_in(constant, package)
            used, imported = used | more_used, imported | more_imported
        elif isinstance(constant, str) and "import" in "".join(code.co_names):
            imported.add(constant)
    return used, imported


def _is(thing: object, *kinds: type) -> bool:
    """As `isinstance`, which would make a lazy object load what it stands for."""
    return issubclass(type(thing), kinds)


def _entry_of(module: str, table: frozenset[str]) -> str | None:
    """The entry of a table that a module belongs to."""
    parts = module.split(".")
    return next((name for n in range(len(parts)) if (name := ".".join(parts[: n + 1])) in table), None)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _module_of(thing: Any) -> str:
    if _is(thing, ModuleType):
        return thing.__name__
    if _is(thing, FunctionType):  # a decorator copies `__module__`
        return str(thing.__globals__.get("__name__", ""))
    return str(getattr(thing, "__module__", None) or "")


def _top_modules(thing: Any) -> set[str]:
    return {_top(base.__module__) for base in type(thing).__mro__}


def _open_connection(thing: Any) -> str | None:
    """Whether something can be written to an object now: an open socket, a transport, a file."""
    with suppress(Exception):
        if _is(thing, socket.socket):
            thing.getpeername()  # raises without a connection; an audit event shows that one is made
            return "an open socket"
        if _is(thing, io.IOBase):
            is_open = not thing.closed and thing.writable() and thing.fileno() > 2
            return "an open file" if is_open else None
        if "asyncio" in _top_modules(thing) and hasattr(thing, "write") and not thing.is_closing():
            return "an open connection of asyncio"
    return None
