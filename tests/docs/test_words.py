"""The pages, docstrings and messages use the words of the glossary, and no others for the same things."""

from pathlib import Path

import pytest

from docs.making import strings, words

pytestmark = pytest.mark.docs


def test_no_page_docstring_or_message_has_a_word_that_we_do_not_use() -> None:
    assert [str(one) for one in words.findings()] == []


@pytest.mark.parametrize(
    "text",
    [
        "A busy service is asked again.",
        "The call is refused while the circuit is open.",
        "All of it stands in the Prefect UI.",
        "The store is away.",
        "What was undone is compensated.",
        "`window` is no duration.",
    ],
)
def test_such_a_word_is_found(text: str) -> None:
    assert [*words._in_text(strings.ROOT / "page.md", 1, text, lines=True)]


@pytest.mark.parametrize(
    "text",
    [
        "An error says: connection refused.",
        "Use `undo=`:\n\n```text\nnobody\n```",
        "There is no node of that name, and it is no longer needed.",
        "The call is rejected while the circuit is open.",
    ],
)
def test_others_are_not(text: str) -> None:
    assert [*words._in_text(strings.ROOT / "page.md", 1, text, lines=True)] == []


def test_the_list_of_texts_has_messages_and_docstrings() -> None:
    found = [*strings.texts(["guards"])]
    assert {one.kind for one in found} == {"message", "docstring"}
    assert all(isinstance(one.path, Path) and one.line > 0 for one in found)
    assert any("is not a" in one.text or "write" in one.text for one in found if one.kind == "message")
    assert not any(one.text.lstrip().startswith("SELECT ") for one in [*strings.texts(["stores"])])
