"""A client: it answers orders with its own records, which never leave it."""

from __future__ import annotations

from federated.task import federation, objective
from isthmus.distributed.flower import client_app

app = client_app(
    lambda context: federation(context.run_config),
    lambda context: objective(int(context.node_config["partition-id"])),
)
