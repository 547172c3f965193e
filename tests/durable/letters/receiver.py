"""A real HTTP receiver that counts what it gets."""

import json
from collections import Counter
from collections.abc import Callable

from prefect_resilience.testing.services import ReceivedRequest, Reply, ScriptedService


class Receiver(ScriptedService):
    """Takes messages, or refuses them while `broken`. `on_message` is called before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.got: list[str] = []
        self.on_message: Callable[[str], None] = lambda message: None

    def answer(self, request: ReceivedRequest) -> Reply:
        message = json.loads(request.body)["message"]
        if not self.broken:
            self.got.append(message)
            self.on_message(message)
        return Reply(503 if self.broken else 200, body=message)

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.got)
