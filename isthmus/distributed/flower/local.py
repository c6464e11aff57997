"""A Flower `Grid` in one process: to try an app out, and for tests.  Messages are written to bytes and read again."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from isthmus.base import validate
from isthmus.distributed.flower.packages import flower

Between = Callable[[int, Any], Any]


class LocalGrid:
    """`clients` nodes that run one `ClientApp`, with partitions 0, 1, ... and a state of their own.

    between   (number of the client, its reply) -> what arrives of it, or None where nothing does
    up, down  bytes of all replies and messages, as Flower writes them
    """

    def __init__(
        self, app: Any, clients: int, *, config: dict[str, Any] | None = None, between: Between | None = None
    ) -> None:
        validate.positive_int(clients=clients)
        flower().serverapp.Grid.register(type(self))
        flower_app = flower().app
        self.app, self.between, self.up, self.down = app, between, 0, 0
        self.serde: Any = importlib.import_module("flwr.common.serde")
        who = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        if who._run_id is None:  # messages are signed with the run of their process, which Flower sets in its own
            who.run_id, who.node_id, who.task_id = 1, 1, 1
        self.contexts = {
            1000 + number: flower_app.Context(
                run_id=1,
                node_id=1000 + number,
                node_config={"partition-id": number, "num-partitions": clients},
                state=flower_app.RecordDict(),
                run_config=dict(config or {}),
            )
            for number in range(clients)
        }
        self._waiting: dict[str, Any] = {}

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Run the app of every addressee."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            reply = self._answered(message)
            if reply is not None:
                self._waiting[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """The replies that have come."""
        return [self._waiting.pop(message_id) for message_id in message_ids if message_id in self._waiting]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """The replies to messages; nobody waits for those that never come."""
        return self.pull_messages(self.push_messages(messages))

    def _answered(self, message: Any) -> Any:
        flower_app, node = flower().app, message.metadata.dst_node_id
        came, size = self._travelled(message)
        self.down += size
        try:
            reply = self.app(came, self.contexts[node])
        except Exception as error:  # as a node does: what an app raises comes back as an error
            reply = flower_app.Message(
                flower_app.Error(code=1, reason=f"{type(error).__name__}: {error}"), reply_to=came
            )
        if self.between is not None:
            reply = self.between(node - 1000, reply)
        if reply is None:
            return None
        reply, size = self._travelled(reply)
        self.up += size
        return reply

    def _travelled(self, message: Any) -> tuple[Any, int]:
        proto = self.serde.message_to_proto(message)
        data = proto.SerializeToString()
        return self.serde.message_from_proto(type(proto).FromString(data)), len(data)
