"""`@resilient_task(dead_letter=True)`: what finally failed is kept, and nothing else, wherever it runs."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest
from prefect import flow, task
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner

from prefect_resilience import ConfigurationError, ResilientTask, dead_letters, resilient_task
from prefect_resilience.tasks.edge.run_hooks import dead_letter
from tests.durable.letters import shop
from tests.durable.letters.receiver import Receiver

pytestmark = pytest.mark.api


def fails(message: str = "none") -> str:
    raise ConnectionError(message)


def run(made: Any, *args: Any, **kwargs: Any) -> Any:
    """The final state of one run of the task in a flow."""

    @flow
    def scenario() -> Any:
        return [made(*args, return_state=True, **kwargs)]

    return scenario()[0]


def messages() -> list[Any]:
    return sorted(letter.parameters["message"] for letter in dead_letters.list())


@pytest.mark.smoke
def test_one_letter_after_the_last_attempt_and_it_can_be_replayed(receiver: Receiver) -> None:
    receiver.broken = True
    assert run(shop.notify, "hello").is_failed()
    (letter,) = dead_letters.list()
    assert (letter.parameters, letter.attempts) == ({"message": "hello"}, 2)
    assert str(letter.source) == "tests.durable.letters.shop:notify"
    # Replayed in vain, it is still the same letter.
    assert dead_letters.replay().failed == 1
    assert len(dead_letters.list()) == 1
    receiver.broken = False
    assert dead_letters.replay().replayed == 1
    assert receiver.got == ["hello"]


@pytest.mark.parametrize("runner", ["threads", "processes", "dask"])
@pytest.mark.timeout(240)
def test_task_runners(
    runner: str, receiver: Receiver, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/letters.db")
    receiver.broken = True

    @flow(task_runner=_runner(runner))
    def campaign() -> None:
        shop.notify.map(["a", "b"]).wait()

    campaign(return_state=True)
    assert messages() == ["a", "b"]
    assert {letter.attempts for letter in dead_letters.list()} == {2}


def _runner(name: str) -> Any:
    if name == "threads":
        return ThreadPoolTaskRunner(max_workers=2)
    if name == "processes":
        return ProcessPoolTaskRunner(max_workers=1)
    from prefect_dask.task_runners import DaskTaskRunner

    cluster = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None, "processes": False}
    return DaskTaskRunner(cluster_kwargs=cluster)


def test_generators() -> None:
    @resilient_task(dead_letter=True, retry=None)
    def generator(message: str) -> Any:
        yield "first"
        fails(message)

    @flow
    def reading() -> None:
        with pytest.raises(ConnectionError):
            list(generator("generator"))

    reading()
    assert messages() == ["generator"]


# -- where the option is written


def test_it_is_kept_and_changed_by_with_options_and_taken_by_wrap() -> None:
    kept = resilient_task(dead_letter=True, retry=None)(fails)
    for made in (kept, kept.with_options(name="other"), cloudpickle.loads(cloudpickle.dumps(kept))):
        run(made, "kept")
    off = kept.with_options(dead_letter=False)
    run(off, "off")
    run(off.with_options(dead_letter=True), "on again")
    run(ResilientTask.wrap(task(fails), dead_letter=True, retry=None), "wrapped")
    run(ResilientTask.wrap(task(fails), retry=None), "off")
    assert messages() == ["kept", "kept", "kept", "on again", "wrapped"]


def test_it_stands_beside_the_users_own_hooks_and_makes_one_letter_with_them() -> None:
    called: list[str] = []

    def mine(task: Any, task_run: Any, state: Any) -> None:
        called.append(state.message)

    made = resilient_task(dead_letter=True, retry=None, on_failure=[mine, dead_letter])(fails)
    run(made, "once")
    assert (messages(), len(called)) == (["once"], 1)
    # Whatever is switched off or added later, the user's own hooks stay theirs.
    run(made.with_options(dead_letter=False), "once more")
    assert (messages(), len(called)) == (["once", "once more"], 2)
    later = resilient_task(dead_letter=True, retry=None)(fails)
    later.on_failure(mine)
    later.on_failure(dead_letter)
    run(later, "later")
    run(later.with_options(on_failure=[mine]), "replaced")
    assert messages() == ["later", "once", "once more", "replaced"]
    assert len(called) == 4


def test_what_cannot_be_meant() -> None:
    with pytest.raises(ConfigurationError, match="dead_letter='yes' is not a boolean"):
        resilient_task(dead_letter="yes")(fails)
    with pytest.raises(ConfigurationError, match="no option 'dead_leter'; did you mean 'dead_letter'"):
        resilient_task(dead_leter=True)(fails)
