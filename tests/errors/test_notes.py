"""Notes on exceptions."""

import traceback

from prefect_resilience.errors.secrets.redact import add_note


class Closed(Exception):
    def __setattr__(self, name, value):
        raise TypeError("closed")


def test_notes_are_kept_in_their_order_and_shown():
    error = ValueError("broken")
    add_note(error, "first")
    add_note(error, "second")
    assert error.__notes__ == ["first", "second"]
    assert "second" in "".join(traceback.format_exception(error))


def test_an_exception_that_takes_none_goes_without():
    error = Closed("broken")
    add_note(error, "never")
    assert not hasattr(error, "__notes__")
