"""The clients of the benchmark; a node whose configuration says so is slow, or answers nonsense, in some rounds."""

from __future__ import annotations

import time
from typing import Any

from isthmus.distributed.flower import client_app
from nodes.task import federation, objective


def faulty(message: Any, context: Any, call_next: Any) -> Any:
    """A mod that stands for what goes wrong: fault="delay" or "corrupt", from round `from` to round `until`."""
    node_config = context.node_config
    if "fault" not in node_config:
        return call_next(message, context)
    t = int(message.metadata.group_id)
    now = int(node_config.get("from", 0)) <= t < int(node_config.get("until", 0))
    if now and node_config.get("fault") == "delay":
        time.sleep(float(node_config["seconds"]))
    reply = call_next(message, context)
    if now and node_config.get("fault") == "corrupt":
        data = bytearray(reply.content["isthmus"]["answer"])
        data[len(data) // 2] ^= 16
        reply.content["isthmus"]["answer"] = bytes(data)
    return reply


app = client_app(
    lambda context: federation(context.run_config),
    lambda context: objective(int(context.node_config["partition-id"]), int(context.run_config["features"])),
    mods=[faulty],
)
