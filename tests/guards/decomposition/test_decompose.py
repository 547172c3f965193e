"""Decompose, as it may be written, and what cannot be meant."""

import pytest

from prefect_resilience import ConfigurationError, Decompose, resilient_task, split_list, split_text


def halves(document: str) -> list[str]:
    return [document[:1], document[1:]]


def test_split_merge_and_depth_in_their_order() -> None:
    assert Decompose(halves, "join", 2) == Decompose(split=halves, merge="join", max_depth=2)
    assert Decompose(halves) == Decompose(halves, "concat", 3)
    assert Decompose(split_text("document"), parallel=2).parallel == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Decompose(), r"Decompose\(split"),
        (lambda: Decompose(halves, "jion"), "did you mean 'join'"),
        (lambda: Decompose(halves, "join", 0), "max_depth=0"),
        (lambda: Decompose(halves, depth=2), "no option 'depth'"),
    ],
)
def test_mistakes(make, says) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decompose": split_list("itms")}, "did you mean 'items'"),
        ({"decompose": split_list("items"), "effect": "external"}, "splits one call into several"),
        ({"decompose": {"split": {"kind": "list", "parameter": "items"}, "merge": "conct"}}, "'concat'"),
        ({"decompose": Decompose(lambda wrong: [])}, "split= needs the parameter 'wrong'"),
        ({"decompose": Decompose(split_list("items"), merge=lambda: 1)}, "write def merge"),
        ({"decompose": 5}, "is not a decomposition"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_decoration(options, says):
    with pytest.raises(ConfigurationError, match=says):

        @resilient_task(**options)
        def work(items):
            return items


def test_async_split_and_generators_are_refused():
    async def halves(items):
        return [items]

    with pytest.raises(ConfigurationError, match="split= is async"):
        resilient_task(decompose=Decompose(halves))(lambda items: items)

    def chunks(items):
        yield from items

    with pytest.raises(ConfigurationError, match="is a generator"):
        resilient_task(decompose=split_list("items"))(chunks)
