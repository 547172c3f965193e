"""What needs no Prefect imports none, and works where it is not installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prefect.settings import PREFECT_API_URL

PACKAGE = Path(__file__).parents[2] / "prefect_resilience"

HEAVY = {
    *("prefect", "griffe", "jsonschema", "jinja2", "pydantic_settings", "httpx", "starlette", "rich", "yaml"),
    *("requests", "opentelemetry", "anyio", "cloudpickle", "redis", "psycopg", "sqlalchemy"),
}
"""What a guarded call imports only if it uses it."""

FIRST_CALL = [
    "annotated_types",
    "lazy_loader",
    "prefect_resilience",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
]
"""What a first call with a circuit in a SQLite file imports besides the standard library."""

SEEN = """
import json, sys
outside = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(json.dumps(sorted(name for name in outside if not name.startswith("_"))))
"""

NAMES = (
    *("resilient", "Retry", "Backoff", "CircuitBreaker", "Bulkhead", "RateLimit", "AdaptiveLimit", "Hedge"),
    *("Timeout", "Fallback", "Expect", "Decompose", "classify", "path", "Condition", "batch", "Effect"),
    *("idempotency_key", "append_once", "dead_letters", "batch_status", "get_circuits", "redact"),
)

IMPORTS = f"from prefect_resilience import {', '.join(NAMES)}\n"

CALLS = {
    "circuit": """
@resilient(retry=Retry(attempts=2), circuit=CircuitBreaker("api"))
def fetch(x):
    return x
assert fetch(1) == 1
""",
    "retry": """
tries = []
@resilient(retry=Retry(attempts=3, backoff=Backoff.constant(0)), fallback=lambda: "instead")
def fetch():
    tries.append(1)
    raise ConnectionError("password=hunter2")
assert fetch() == "instead" and len(tries) == 3
""",
    "effect": """
with batch("night"):
    @resilient(effect=Effect(kind="external", key="letter:{x}"))
    def send(x):
        return idempotency_key()
    assert send(1).endswith("letter:1")
assert batch_status("night").effects[0].state == "done"
assert dead_letters.list() == []
""",
    "limits": """
@resilient(limits=[Bulkhead(2), RateLimit(5, per=1)], timeout=5)
def fetch(x):
    return x
assert fetch(1) == 1 and classify(TimeoutError()).category == "timeout"
""",
}


def run(code: str, there: Path, *, home: bool = True, **more: str) -> Any:
    """The value that a script prints last, as JSON; in a folder that is Prefect's home, too."""
    names = ("PREFECT_", "RESILIENCE_", "OTEL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    environment |= {"PREFECT_HOME": str(there), **more} if home else more
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=there, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_name_imports_nothing_that_it_does_not_use(tmp_path: Path):
    code = "".join(f"from prefect_resilience import {name}\n" for name in NAMES)
    assert HEAVY.isdisjoint(run(code + SEEN, tmp_path))


def test_transports_import_their_client_and_no_prefect(tmp_path: Path):
    seen = run(
        "from prefect_resilience.http import ResilientTransport\nResilientTransport()" + SEEN, tmp_path
    )
    assert "httpx" in seen
    assert {"prefect", "pydantic_settings", "jsonschema"}.isdisjoint(seen)


def test_calls_import_no_prefect(tmp_path: Path):
    assert HEAVY.isdisjoint(run(IMPORTS + "".join(CALLS.values()) + SEEN, tmp_path))


def test_the_modules_of_a_first_call(tmp_path: Path):
    first = "from prefect_resilience import CircuitBreaker, Retry, resilient\n" + CALLS["circuit"]
    assert run(first + SEEN, tmp_path) == FIRST_CALL


def test_a_sync_call_imports_no_event_loop_and_builds_no_model(tmp_path: Path):
    """pydantic imports `importlib.metadata` when it builds a process's first model. In the second process,
    the circuit has a document."""
    first = "from prefect_resilience import resilient\nassert resilient(circuit='api')(len)('four') == 4\n"
    slow = ("asyncio", "concurrent.futures", "email", "html", "importlib.metadata", "ssl", "subprocess")
    imported = f"import json, sys\nprint(json.dumps([name for name in {slow} if name in sys.modules]))"
    for _ in range(2):
        assert run(first + imported, tmp_path) == []


CORE = ("pydantic", "lazy_loader")
MORE = {
    "calls": ("".join(CALLS.values()), ()),
    "a coroutine's timeout": (
        """
import asyncio
@resilient(timeout=0.01, retry=Retry(attempts=1))
async def fetch():
    await asyncio.sleep(60)
try:
    asyncio.run(fetch())
except TimeoutError:
    pass
""",
        ("anyio",),
    ),
    "a transport": (
        """
import httpx
from prefect_resilience.http import ResilientTransport
answer = httpx.MockTransport(lambda request: httpx.Response(200, text="well"))
with httpx.Client(transport=ResilientTransport(transport=answer)) as client:
    assert client.get("http://127.0.0.1/").text == "well"
""",
        ("anyio", "httpx"),
    ),
    "a process": (
        """
import os
@resilient(timeout=Timeout(60, mode="process"))
def pid():
    return os.getpid()
assert pid() != os.getpid()
""",
        ("anyio", "cloudpickle"),
    ),
    "a schema": (
        """
@resilient(expect=Expect({"type": "array"}))
def numbers():
    return [1]
assert numbers() == [1]
""",
        ("jsonschema",),
    ),
    "a condition": ('assert (path("a.b") == 1).evaluate({"a": {"b": 1}})\n', ("python-jsonpath", "regex")),
}


def install(distributions: Iterable[str], folder: Path) -> None:
    """Link distributions and what they need into a folder, as `pip install --target` copies them."""
    wanted, seen = [*distributions], set[str]()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for top in {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(found.locate_file(top))))
        for need in map(Requirement, found.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                wanted.append(need.name)


@pytest.mark.parametrize("use", MORE)
def test_it_works_where_prefect_is_not_installed(use: str, tmp_path: Path):
    code, libraries = MORE[use]
    site = tmp_path / "site"
    site.mkdir()
    install((*CORE, *libraries), site)
    (site / "prefect_resilience").symlink_to(PACKAGE)
    start = "import sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    start += "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
    start += f"sys.path.insert(0, {str(site)!r})\n"
    needs = "import importlib.util\nassert importlib.util.find_spec('prefect') is None\n"
    run(start + needs + IMPORTS + code + "print(0)", tmp_path)


# The folder of the default store, with Prefect and without it.

PROFILES = """
active = "{active}"
[profiles.work]
PREFECT_HOME = "{there}/of-work"
[profiles.other]
PREFECT_HOME = "{there}/of-other"
"""


HOME = "home/.prefect/profiles.toml"


def profiles(active: str, where: str = HOME) -> dict[str, str]:
    return {where: PROFILES.replace("{active}", active)}


PLACES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {}),
    "environment": ({"PREFECT_HOME": "{there}/a"}, {}),
    "environment, relative": ({"PREFECT_HOME": "a"}, {}),
    "environment, in lower case": ({"prefect_home": "{there}/low"}, {}),
    "dotenv": ({}, {".env": "PREFECT_HOME={there}/dot"}),
    "dotenv, quoted": ({}, {".env": "export PREFECT_HOME='{there}/d o t'  # a note"}),
    "dotenv, with a variable": ({"BASE": "{there}/base"}, {".env": "PREFECT_HOME=${BASE}/dot"}),
    "dotenv below the environment": ({"PREFECT_HOME": "{there}/a"}, {".env": "PREFECT_HOME={there}/dot"}),
    "prefect.toml": ({}, {"prefect.toml": 'home = "{there}/toml"'}),
    "prefect.toml below dotenv": (
        {},
        {"prefect.toml": 'home = "{there}/toml"', ".env": "PREFECT_HOME={there}/dot"},
    ),
    "pyproject.toml": ({}, {"pyproject.toml": '[tool.prefect]\nhome = "~/project"'}),
    "pyproject.toml below prefect.toml": (
        {},
        {"pyproject.toml": '[tool.prefect]\nhome = "{there}/p"', "prefect.toml": 'home = "{there}/toml"'},
    ),
    "pyproject.toml, quoted": ({}, {"pyproject.toml": '[tool."prefect"]\nhome = "{there}/quoted"'}),
    "profile": ({}, profiles("work")),
    "profile by its name": ({"PREFECT_PROFILE": "other"}, profiles("work")),
    "profile that does not exist": ({"PREFECT_PROFILE": "none"}, profiles("work")),
    "profile below pyproject.toml": (
        {},
        profiles("work") | {"pyproject.toml": '[tool.prefect]\nhome = "{there}/project"'},
    ),
    "profiles elsewhere": (
        {"PREFECT_PROFILES_PATH": "{there}/mine.toml"},
        profiles("other", "mine.toml"),
    ),
    "profiles elsewhere, by prefect.toml": (
        {},
        {"prefect.toml": 'profiles_path = "{there}/mine.toml"'} | profiles("other", "mine.toml"),
    ),
    "profiles in the home": ({"PREFECT_HOME": "here"}, profiles("other", "here/profiles.toml")),
    "profiles in test mode": ({"PREFECT_TEST_MODE": "1"}, profiles("work")),
}

OWN = {
    "by the environment": ({"PREFECT_RESILIENCE_STORE_URL": "memory://here"}, {}),
    "by dotenv": ({}, {".env": "PREFECT_RESILIENCE_STORE_URL=memory://here"}),
    "by prefect.toml": ({}, {"prefect.toml": '[resilience]\nstore_url = "memory://here"'}),
    "by pyproject.toml": ({}, {"pyproject.toml": '[tool.prefect.resilience]\nstore_url = "memory://here"'}),
    "by the profile": (
        {},
        {HOME: 'active = "a"\n[profiles.a]\nPREFECT_RESILIENCE_STORE_URL = "memory://here"\n'},
    ),
}

LOOK = """
import json, os, pathlib, sys
top = pathlib.Path.cwd()
before = dict(os.environ)
seen = {}
SETUP
for place, (variables, files) in json.loads(os.environ["PLACES"]).items():
    folder = top / place
    for name, text in files.items():
        path = top / name if name.startswith("home/") else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ.update(variables)
    seen[place] = str(LOOK)
    os.environ.clear()
    os.environ.update(before)
    for path in (top / "home" / ".prefect").glob("*.toml"):
        path.unlink()
print(json.dumps([seen, "prefect" in sys.modules]))
"""
WITH_PREFECT = LOOK.replace("SETUP", "from prefect.settings import Settings").replace(
    "LOOK", "Settings().home"
)
WITHOUT = LOOK.replace(
    "SETUP",
    """
from prefect_resilience.base.edge import current_settings, prefect_files
def look():
    for cached in (prefect_files._sources, prefect_files._in_any_case, current_settings._read):
        cached.cache_clear()
    return current_settings.RESULT
""",
).replace("LOOK", "look()")


def looked_up(code: str, places: Mapping[str, Any], there: Path) -> tuple[dict[str, str], bool]:
    """What is found in each place, and whether Prefect was imported for it."""
    (there / "home" / ".prefect").mkdir(parents=True)
    text = json.dumps(places).replace("{there}", str(there))
    seen, imported = run(code, there, home=False, HOME=str(there / "home"), PLACES=text)
    return seen, imported


def test_the_default_store_is_where_it_is_with_prefect(tmp_path: Path):
    found, imported = looked_up(WITHOUT.replace("RESULT", "prefect_home()"), PLACES, tmp_path / "place")
    expected, _ = looked_up(WITH_PREFECT, PLACES, tmp_path / "place2")
    assert not imported
    assert found == {place: home.replace("place2", "place") for place, home in expected.items()}
    assert len({*found.values()}) > len(found) / 2


def test_our_own_variables_are_read_from_the_same_places(tmp_path: Path):
    found, imported = looked_up(WITHOUT.replace("RESULT", "store_url()"), OWN, tmp_path / "place")
    assert not imported
    assert found == dict.fromkeys(OWN, "memory://here")


DAMAGED = {
    "a number": {"prefect.toml": "home = 5"},
    "profiles": {HOME: "active = "},
    "pyproject.toml": {"pyproject.toml": "[tool.prefect]\nhome = "},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_named(damage: str, tmp_path: Path):
    code = WITHOUT.replace("RESULT", "prefect_home()").replace("str(look())", "str(refusal())")
    code = code.replace(
        "def look():",
        """
from prefect_resilience import ConfigurationError
def refusal():
    try:
        look()
    except ConfigurationError as error:
        return error
def look():""",
    )
    found, _ = looked_up(code, {"place": ({}, DAMAGED[damage])}, tmp_path / "there")
    assert "Prefect's settings cannot be read" in found["place"]
    assert ".toml" in found["place"] or "home = 5" in found["place"]


def test_what_is_set_twice_is_asked_of_prefect(tmp_path: Path):
    places = {"place": ({"PREFECT_HOME": "a", "prefect_home": "b"}, {})}
    _, imported = looked_up(WITHOUT.replace("RESULT", "prefect_home()"), places, tmp_path / "there")
    assert imported


IN_A_RUN = """
calls = []

@resilient(retry=Retry(attempts=3, backoff=Backoff.constant(0)), circuit="api", limits=[Bulkhead(2)])
def fetch(x):
    calls.append(x)
    if len(calls) % 2:
        raise ConnectionError("refused")
    return idempotent(x)

@resilient(effect=Effect(kind="external", key="letter:{x}"))
def send(x):
    return idempotency_key()

def idempotent(x):
    with batch("named"):
        return send(x)
"""

ORDERS = {
    "Prefect first": "import prefect\n" + IMPORTS + IN_A_RUN + "outside = fetch(1)\n",
    "Prefect last": IMPORTS + IN_A_RUN + "outside = fetch(1)\nimport prefect\n",
}

AFTERWARDS = """
import json, logging, re
lines = []

class Keep(logging.Handler):
    def emit(self, record):
        lines.append([record.name.partition(".")[0], re.split(" in |, after", record.getMessage())[0]])

@prefect.task
def work(x):
    return fetch(x), send(x)

@prefect.flow
def night():
    keep = Keep()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addHandler(keep)
    from prefect_resilience.telemetry.edge.call_totals import all_totals
    values = [fetch(2), work(3), send(4)]
    of_flow, of_task = prefect.runtime.flow_run.id, len(all_totals.by_place)
    mine = batch_status(str(of_flow))
    return [str(value).replace(of_flow, "RUN") for value in values], of_task, len(mine.effects)

result = night()
said = [line for line in lines if "fetch" in line[1]]
print(json.dumps([outside, result, said, [c.name for c in get_circuits()], len(calls)]))
"""


def test_the_order_of_the_imports_changes_nothing(prefect_api: None, tmp_path: Path):
    seen = {}
    for order, code in ORDERS.items():
        home = tmp_path / order
        home.mkdir()
        seen[order] = run(code + AFTERWARDS, home, PREFECT_API_URL=str(PREFECT_API_URL.value()))
    first, last = seen.values()
    assert first == last
    assert first[1][2] == 2
    assert any("Retrying" in line for _, line in first[2])
