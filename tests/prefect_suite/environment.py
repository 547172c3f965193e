"""An environment for Prefect's suite: this package with its pinned versions, and the suite's own packages."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "moto",
    "numpy",
    "opentelemetry-distro",
    "opentelemetry-exporter-otlp",
    "opentelemetry-instrumentation-logging",
    "pytest",
    "pytest-env",
    "pytest-timeout",
    "pytest-xdist",
    "respx",
    "uv",
    "virtualenv",
    "watchfiles",
    "yamllint",
)
"""What the tests import of Prefect's group `dev`; its linters and documentation tools are left out."""
UNCONSTRAINED = ("pytest-asyncio>=1.1,<1.5",)
"""Prefect's fixtures fail with a later one, such as ours."""
ALONE = ("opentelemetry-test-utils>=0.48b0", "asgiref")
"""Without dependencies: it asks for the OpenTelemetry of its own day and works with ours."""

ALL = (PACKAGES, UNCONSTRAINED, ALONE)


def make_environment(folder: Path, checkout: Path) -> Path:
    """The Python of the environment in `folder`, made anew when its packages have changed."""
    python = folder / "bin" / "python"
    made = folder / ".prefect-suite"
    wanted = "".join((ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt")) + repr(ALL)
    if not made.exists() or made.read_text() != wanted:
        print(f"installing into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=made.exists())
        constraints = ["-c", str(ROOT / "constraints.txt")]
        install(python, *constraints, "-e", f"{ROOT}[redis,postgres,otel]", *PACKAGES)
        install(python, *UNCONSTRAINED)
        install(python, "--no-deps", *ALONE)
        made.write_text(wanted)
    # Some tests look for their files beside the folder of the package, where a checkout has them.
    (library,) = folder.glob("lib/python3*")
    beside = library / "tests"
    beside.unlink(missing_ok=True)
    beside.symlink_to(checkout / "tests")
    return python


def install(python: Path, *packages: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
