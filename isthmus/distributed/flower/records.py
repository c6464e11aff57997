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
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.codecs import Codec
from isthmus.core.wire import Message
from isthmus.distributed.order import Order, _digest_of
from isthmus.privacy.clips import ClippedSum

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict
    from flwr.app import Message as Letter


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


def space_of(record: ArrayRecord) -> Space:
    """The space of an `ArrayRecord`: one leaf an array, in its order; arrays of whole numbers are refused.

    For models whose `state_dict` a Flower app sends: `space_of(ArrayRecord(model.state_dict()))`.
    """
    for name, array in record.items():
        real = array.dtype.startswith(("float", "bfloat"))
        validate.check(real, f"arrays[{name!r}]", array.dtype, "send trained parameters only: leave counters out")
    return Space.of({name: tuple(array.shape) for name, array in record.items()})


def to_arrays(w: Tensor, space: Space) -> ArrayRecord:
    """A vector as an `ArrayRecord`, by leaves."""
    host = w.detach().cpu()
    return _record({leaf.name: host[space.slice(leaf.name)].reshape(leaf.shape) for leaf in space.leaves})


def from_arrays(record: ArrayRecord, space: Space) -> Tensor:
    """The vector of an `ArrayRecord` whose names and shapes are those of the space; others are refused."""
    names = [leaf.name for leaf in space.leaves]
    validate.check(set(record) == set(names), "arrays", sorted(record), f"give {names}")
    arrays = _vectors(record)
    for leaf in space.leaves:
        validate.shape(leaf.shape, **{f"arrays[{leaf.name!r}]": arrays[leaf.name]})
    return torch.cat([arrays[name].reshape(-1) for name in names])


def _record(vectors: Mapping[str, Tensor]) -> ArrayRecord:
    app = flower().app
    return app.ArrayRecord({name: app.Array(vector.detach().cpu().numpy()) for name, vector in vectors.items()})


def _vectors(record: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def keep(state: RecordDict, name: str, vectors: Mapping[str, Tensor]) -> None:
    """Keep vectors in a client's `context.state`."""
    state[name] = _record(vectors)


def _kept_vectors(state: RecordDict, name: str) -> dict[str, Tensor]:
    """The vectors that were kept."""
    if name not in state:
        return {}
    return _vectors(state.array_records[name])


# ---------------------------------------------------------------- orders


def _config_of(content: RecordDict) -> dict[str, Any]:
    """What a message says beside its arrays."""
    return dict(content.config_records[RECORD])


def ask(order: Order, space: Space, visit: int = 0, since: Tensor | None = None, plan: str = "none") -> RecordDict:
    """The content of a message that asks a client; `since` is an iterate that it has kept, `plan` a digest."""
    app, w = flower().app, order.w
    assert w is not None
    config = {"order": order.short().to_bytes(), "visit": visit, "plan": plan}
    if since is not None:
        bits = _BITS[w.itemsize]
        places = (w.view(bits) != since.view(bits)).nonzero().reshape(-1)
        if len(places) * (w.itemsize + 4) < w.numel() * w.itemsize:
            changes = _record({"places": places.to(torch.int32), "values": w[places]})
            config["since"] = _digest_of(since)
            return app.RecordDict({RECORD: app.ConfigRecord(config), _UPDATE: changes})
    return app.RecordDict({RECORD: app.ConfigRecord(config), ARRAYS: to_arrays(w, space)})


def _read_ask(content: RecordDict, space: Space, iterate: Tensor | None) -> Order:
    """The order that `ask` wrote; `iterate` is what this client has kept of an earlier round."""
    config = _config_of(content)
    order = Order.from_bytes(config["order"])
    if ARRAYS in content:
        w = from_arrays(content.array_records[ARRAYS], space)
    else:
        if iterate is None or _digest_of(iterate) != config["since"]:
            validate.refuse("since", config["since"], "send the whole iterate: this client does not have that one")
        changes = _vectors(content.array_records[_UPDATE])
        w = iterate.index_copy(0, changes["places"].long(), changes["values"])
    remedy = "send the iterate whole: this client has another one"
    validate.check(_digest_of(w) == order.digest, "order.digest", order.digest, remedy)
    return replace(order, w=w)


# ---------------------------------------------------------------- answers


def answer(message: Message, asked: bytes, counts: bool) -> bytes:
    """A message as bytes: a seal, how many records its client has where that `counts`, the code of every release."""
    body = message.records.to_bytes(8, "little") if counts else b""
    for name, bounded in message.values.items():
        data = message.coded.get(name)
        if data is None:
            data = bounded.value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        body += len(data).to_bytes(4, "little") + data
    return _seal(asked, body) + body


def _read_answer(
    data: bytes, asked: bytes, like: Message, codec: Codec | None, divisor: Callable[[int], float] | None
) -> Message:
    """The message of an answer to `asked`, with the sizes, dtypes and bounds of `like`; anything else is refused.

    `divisor` is what follows from how many records a client has; None where the divisor is that of `like`, and public.
    """
    right = isinstance(data, bytes) and len(data) > SEAL and data[:SEAL] == _seal(asked, data[SEAL:])
    remedy = "ask the client again: the answer was damaged on the way, or belongs to another order"
    validate.check(right, "answer", type(data).__name__, remedy)
    rest, values = data[SEAL:], {}
    if divisor is not None:
        count, rest = _taken(rest, 8)
        records = int.from_bytes(count, "little")
        validate.positive_int(records=records)
        like = replace(like, divisor=divisor(records), records=records)
    for name, bounded in like.values.items():
        size, rest = _taken(rest, 4)
        code, rest = _taken(rest, int.from_bytes(size, "little"))
        values[name] = _value(name, bounded, code, codec)
    validate.check(not rest, "answer", f"{len(data)} bytes", f"send {len(data) - len(rest)} bytes, as the plan says")
    return replace(like, values=values, dims=sum(b.value.numel() for b in values.values()), bytes=len(data))


def _taken(body: bytes, size: int) -> tuple[bytes, bytes]:
    """So many bytes of an answer, and the rest."""
    validate.check(size <= len(body), "answer", f"{len(body)} bytes", "send the whole answer: this one ends too early")
    return body[:size], body[size:]


def _value(name: str, like: ClippedSum, data: bytes, codec: Codec | None) -> ClippedSum:
    if codec is not None:
        value = codec.decode(data, like.value)
    else:
        due = like.value.numel() * like.value.element_size()
        remedy = f"send {due} bytes: both sides need the same federation, dtype={like.value.dtype} included"
        validate.check(len(data) == due, f"answer[{name!r}]", f"{len(data)} bytes", remedy)
        value = torch.frombuffer(bytearray(data), dtype=like.value.dtype)
    remedy = "send finite numbers, as a sum of gradients is"
    validate.check(bool(value.isfinite().all()), f"answer[{name!r}]", "not finite", remedy)
    return replace(like, value=value)


def _seal(order: bytes, body: bytes) -> bytes:
    """Of an order and what answers it: a late answer to another order does not fit."""
    return hashlib.blake2b(hashlib.blake2b(order, digest_size=16).digest() + body, digest_size=SEAL).digest()


def _answer_in(reply: Letter) -> bytes:
    """The answer in a client's reply; a client that failed, or sent something else, is refused with what it said."""
    if reply.has_error():
        remedy = f"look at the client, which failed: {reply.error.reason}"
        if ANOTHER in remedy:
            remedy = f"give both sides the same Federation: the client has {ANOTHER}, and refused"
        validate.refuse("reply", reply.error.code, remedy)
    data = dict(reply.content.get(RECORD, {})).get("answer")
    if not isinstance(data, bytes):
        remedy = "run isthmus.distributed.flower at the client: its reply has no answer of bytes"
        validate.refuse("reply", sorted(reply.content), remedy)
    return data
