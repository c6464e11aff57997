"""What is used of `flwr`, which is an extra: loaded when it is first needed.

Orders and answers as records of Flower messages: bytes and arrays, no pickle.

    down   "isthmus"  order   the order without its iterate: seed, t, step, clip bounds (`Order.short`)
                      plan    digest of the plan: a client with another one refuses
                      visit   how often the client was asked in this round before
                      since   digest of the iterate that `update` changes, where only changes are sent
           "arrays"           the iterate by leaves, or
           "update"           places and values of the coordinates that have changed
    up     "isthmus"  answer  8 bytes that show damage, then the codes

An answer holds no shapes, bounds or dtypes: the server has these, and takes nobody's word for them.
"""

from __future__ import annotations

import hashlib
import importlib
import struct
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.codecs import Codec
from isthmus.core.wire import Message
from isthmus.distributed.order import Order, digest_of
from isthmus.privacy.clips import ClippedSum


@lru_cache(maxsize=1)
def flower() -> SimpleNamespace:
    """The modules of Flower's message API: `app`, `clientapp`, `serverapp`, `strategy`."""
    names = {"app": "app", "clientapp": "clientapp", "serverapp": "serverapp", "strategy": "serverapp.strategy"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its command line warns of a later click while it is imported
            return SimpleNamespace(**{key: importlib.import_module(f"flwr.{name}") for key, name in names.items()})
    except ImportError as error:
        raise ImportError(f"Clients of Flower need flwr 1.41 or later; {validate.extra('flower')}") from error


RECORD, ARRAYS, _UPDATE = "isthmus", "arrays", "update"
ANOTHER = "another plan"

SEAL = 8

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


# ---------------------------------------------------------------- vectors


def space_of(record: Any) -> Space:
    """The space of an `ArrayRecord`: one leaf an array, in its order; arrays of whole numbers are refused.

    For models whose `state_dict` a Flower app sends: `space_of(ArrayRecord(model.state_dict()))`.
    """
    for name, array in record.items():
        real = array.dtype.startswith(("float", "bfloat"))
        validate.check(real, f"arrays[{name!r}]", array.dtype, "send trained parameters only: leave counters out")
    return Space.of({name: tuple(array.shape) for name, array in record.items()})


def to_arrays(w: Tensor, space: Space) -> Any:
    """A vector as an `ArrayRecord`, by leaves."""
    app = flower().app
    host = w.detach().cpu()
    leaves = {leaf.name: host[space.slice(leaf.name)].reshape(leaf.shape).numpy() for leaf in space.leaves}
    return app.ArrayRecord({name: app.Array(leaf) for name, leaf in leaves.items()})


def from_arrays(record: Any, space: Space) -> Tensor:
    """The vector of an `ArrayRecord` whose names and shapes are those of the space; others are refused."""
    names = [leaf.name for leaf in space.leaves]
    validate.check(set(record) == set(names), "arrays", sorted(record), f"give {names}")
    parts = []
    for leaf in space.leaves:
        array = record[leaf.name].numpy()
        validate.shape(leaf.shape, **{f"arrays[{leaf.name!r}]": torch.from_numpy(array)})
        parts.append(torch.from_numpy(array.reshape(-1).copy()))
    return torch.cat(parts)


# ---------------------------------------------------------------- orders


@dataclass(frozen=True, eq=False)
class Ask:
    """An order as a client has received it, and how often it was asked before in this round."""

    order: Order
    visit: int
    data: bytes


def ask(order: Order, space: Space, visit: int = 0, since: Tensor | None = None, plan: str = "none") -> Any:
    """The content of a message that asks a client; `since` is an iterate that it has kept, `plan` a digest."""
    app, w = flower().app, order.w
    assert w is not None
    config: dict[str, Any] = {"order": order.short().to_bytes(), "visit": visit, "plan": plan}
    if since is not None:
        bits = _BITS[w.itemsize]
        places = (w.view(bits) != since.view(bits)).nonzero().reshape(-1)
        if len(places) * (w.itemsize + 4) < w.numel() * w.itemsize:
            changes = {"places": places.to(torch.int32).numpy(), "values": w[places].cpu().numpy()}
            record = app.ArrayRecord({name: app.Array(array) for name, array in changes.items()})
            return app.RecordDict({RECORD: app.ConfigRecord({**config, "since": digest_of(since)}), _UPDATE: record})
    return app.RecordDict({RECORD: app.ConfigRecord(config), ARRAYS: to_arrays(w, space)})


def read_ask(content: Any, space: Space, iterate: Tensor | None) -> Ask:
    """What `ask` wrote; `kept` is the iterate that this client has of an earlier round."""
    config = content[RECORD]
    order = Order.from_bytes(config["order"])
    if ARRAYS in content:
        w = from_arrays(content[ARRAYS], space)
    else:
        has = iterate is not None and digest_of(iterate) == config["since"]
        validate.check(has, "since", config["since"], "send the whole iterate: this client does not have that one")
        assert iterate is not None
        places = torch.from_numpy(content[_UPDATE]["places"].numpy().copy()).long()
        w = iterate.index_copy(0, places, torch.from_numpy(content[_UPDATE]["values"].numpy().copy()))
    remedy = "send the iterate whole: this client has another one"
    validate.check(digest_of(w) == order.digest, "order.digest", order.digest, remedy)
    return Ask(replace(order, w=w), int(config["visit"]), config["order"])


# ---------------------------------------------------------------- answers


def answer(message: Message, asked: bytes, counts: bool) -> bytes:
    """A message as bytes: a seal, how many records its client has where that `counts`, the code of every release."""
    parts = [struct.pack("<Q", message.records)] if counts else []
    for name, bounded in message.values.items():
        data = message.coded.get(name) or _raw(bounded.value)
        parts += [struct.pack("<I", len(data)), data]
    body = b"".join(parts)
    return _seal(asked, body) + body


def read_answer(
    data: Any, asked: bytes, like: Message, codec: Codec | None, divisor: Callable[[int], float] | None
) -> Message:
    """The message of an answer to `asked`, with the sizes, dtypes and bounds of `like`; anything else is refused.

    `divisor` is what follows from how many records a client has; None where the divisor is that of `like`, and public.
    """
    right = isinstance(data, bytes) and len(data) > SEAL and data[:SEAL] == _seal(asked, data[SEAL:])
    remedy = "ask the client again: the answer was damaged on the way, or belongs to another order"
    validate.check(right, "answer", type(data).__name__, remedy)
    at, values = SEAL, {}
    if divisor is not None:
        records, at = _number("<Q", data, at)
        validate.positive_int(records=records)
        like = replace(like, divisor=divisor(records), records=records)
    for name, bounded in like.values.items():
        size, at = _number("<I", data, at)
        values[name] = _value(name, bounded, data[at : at + size], codec)
        at += size
    validate.check(at == len(data), "answer", f"{len(data)} bytes", f"send {at} bytes, as the plan says")
    sent = len(data)
    return replace(like, values=values, dims=sum(b.value.numel() for b in values.values()), bytes=sent)


def _value(name: str, like: ClippedSum, data: bytes, codec: Codec | None) -> ClippedSum:
    due = like.value.numel() * like.value.element_size()
    if codec is not None:
        value = codec.decode(data, like.value)
    else:
        remedy = f"send {due} bytes: both sides need the same federation, dtype={like.value.dtype} included"
        validate.check(len(data) == due, f"answer[{name!r}]", f"{len(data)} bytes", remedy)
        value = torch.frombuffer(bytearray(data), dtype=like.value.dtype)
    remedy = "send finite numbers, as a sum of gradients is"
    validate.check(bool(value.isfinite().all()), f"answer[{name!r}]", "not finite", remedy)
    return replace(like, value=value)


def _number(form: str, data: bytes, at: int) -> tuple[Any, int]:
    stop = at + struct.calcsize(form)
    validate.check(stop <= len(data), "answer", f"{len(data)} bytes", "send the whole answer: this one ends too early")
    return struct.unpack(form, data[at:stop])[0], stop


def _raw(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _seal(order: bytes, body: bytes) -> bytes:
    """Of an order and what answers it: a late answer to another order does not fit."""
    return hashlib.blake2b(hashlib.blake2b(order, digest_size=16).digest() + body, digest_size=SEAL).digest()


def answer_in(reply: Any) -> bytes:
    """The answer in a client's reply; a client that failed, or sent something else, is refused with what it said."""
    if reply.has_error():
        remedy = f"look at the client, which failed: {reply.error.reason}"
        if ANOTHER in remedy:
            remedy = f"give both sides the same Federation: the client has {ANOTHER}, and refused"
        validate.refuse("reply", reply.error.code, remedy)
    data = dict(reply.content.get(RECORD, {})).get("answer")
    remedy = "run isthmus.distributed.flower at the client: its reply has no answer of bytes"
    if not isinstance(data, bytes):
        validate.refuse("reply", sorted(reply.content), remedy)
    return data


# ---------------------------------------------------------------- what a client keeps


def keep(state: Any, name: str, vectors: Mapping[str, Tensor]) -> None:
    """Keep vectors in a client's `context.state`."""
    app = flower().app
    state[name] = app.ArrayRecord({key: app.Array(vector.detach().cpu().numpy()) for key, vector in vectors.items()})


def kept_vectors(state: Any, name: str) -> dict[str, Tensor]:
    """The vectors that were kept."""
    if name not in state:
        return {}
    return {key: torch.from_numpy(array.numpy().copy()) for key, array in state[name].items()}
