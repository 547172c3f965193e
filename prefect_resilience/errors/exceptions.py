"""The exceptions of this package.

    ResilienceError
    ├── ConfigurationError (also ValueError)    what was written in the code cannot be meant
    ├── CircuitOpenError                        a circuit refused the call, which was not made
    ├── AttemptTimeout (also TimeoutError)      an attempt passed its deadline
    └── StoreUnavailable                        the store could not answer

Each can be pickled, and its message stands in `args` once.
"""

from __future__ import annotations


class ResilienceError(Exception):
    """The root: `except ResilienceError` catches whatever this package raises of its own."""


class ConfigurationError(ResilienceError, ValueError):
    """A policy or a decorator was given something that cannot be meant; the message says what to write."""


class CircuitOpenError(ResilienceError):
    """A circuit refused the call, which was not made.

    `name` is the circuit's, `retry_in` the seconds until it may be asked again (None when only a person
    can close it), `last_error` the redacted text of the failure that opened it.
    """

    def __init__(self, name: str, retry_in: float | None = None, last_error: str | None = None) -> None:
        self.name = name
        self.retry_in = retry_in
        self.last_error = last_error
        when = "until it is closed by hand" if retry_in is None else f"for {retry_in:.1f} s"
        because = f"; it opened on {last_error}" if last_error else ""
        super().__init__(f"circuit {name!r} refuses calls {when}{because}")

    def __reduce__(self) -> tuple[type[CircuitOpenError], tuple[str, float | None, str | None]]:
        return type(self), (self.name, self.retry_in, self.last_error)


class AttemptTimeout(ResilienceError, TimeoutError):
    """An attempt passed its deadline of `seconds`; Prefect calls the run `TimedOut`."""

    def __init__(self, seconds: float, what: str = "the attempt") -> None:
        self.seconds = seconds
        self.what = what
        super().__init__(f"{what} took longer than {seconds:g} s")

    def __reduce__(self) -> tuple[type[AttemptTimeout], tuple[float, str]]:
        return type(self), (self.seconds, self.what)


class StoreUnavailable(ResilienceError):
    """The store could not answer; whoever asked goes on with what this process knows."""
