"""A round in one process: for tests, benchmarks, and to see what a transport has to do."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from isthmus.distributed.secagg.client import SecureClient
from isthmus.distributed.secagg.server import SecureServer


def run_round(
    server: SecureServer,
    clients: Mapping[int, SecureClient],
    rows: Mapping[int, Tensor | NDArray[np.float64]],
    lost: Mapping[str, Collection[int]] | None = None,
) -> NDArray[np.int64]:
    """The total of a round; `lost` says who is silent from "keys", "letters", "vector" or "shares" on."""
    gone: set[int] = set()

    def alive(moment: str) -> list[int]:
        gone.update((lost or {}).get(moment, ()))
        return [index for index in clients if index not in gone]

    invitation = server.invitation()
    for index in alive("keys"):
        server.receive(clients[index].keys(invitation))
    roster = server.roster()
    for index in alive("letters"):
        server.receive(clients[index].shares(roster))
    inboxes = server.inboxes()
    for index in alive("vector"):
        server.receive(clients[index].masked(inboxes[index], rows[index]))
    survivors = server.survivors()
    for index in alive("shares"):
        server.receive(clients[index].reveal(survivors))
    return server.total()
