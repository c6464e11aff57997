"""The side of a client: a `ClientApp` that answers orders, and a mod that lets an app of one's own answer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from isthmus.base import validate
from isthmus.core.measuring import Client
from isthmus.core.wire import Keys, Message
from isthmus.distributed.flower.federation import Federation, OneTerm, check_linear, check_plan, narrowed
from isthmus.distributed.flower.records import (
    ARRAYS,
    RECORD,
    Ask,
    answer,
    flower,
    from_arrays,
    keep,
    kept_vectors,
    read_ask,
    to_arrays,
)
from isthmus.distributed.flower.secure import secure_step
from isthmus.distributed.order import DataSite, stage_of
from isthmus.privacy.event_json import DpEvent
from isthmus.privacy.ledger import Ledger
from isthmus.privacy.noise import Noise, SecretSource

_ITERATE, _MEMORY = "isthmus.iterate", "isthmus.memory"
_Shared = Federation | Callable[[Any], Federation]
"""What server and clients share, or how it follows from a client's context (its `run_config`)."""
_OwnLedger = Callable[[Any], Ledger]
"""The ledger of a client, from its context."""
_Terms = Callable[[Federation, Ask, str], Any]
"""The records of a client for an order, under its name."""


def client_app(
    federation: _Shared,
    data: Callable[[Any], Any],
    *,
    mods: Sequence[Any] | None = None,
    physical_batch_size: int | None = None,
    ledger: _OwnLedger | None = None,
    noise: Noise | None = None,
) -> Any:
    """A Flower `ClientApp` that answers orders with its own records.

    federation  what server and clients share, or a function of the context that makes it
    data        context -> objective (`Logistic(X, y)`, `ModuleObjective(...)`): called for every message, so keep what
                is slow to load
    mods        of the `ClientApp`
    physical_batch_size  how many records' gradients are held at once
    ledger      context -> the client's own `privacy.Ledger`, a file: it is charged before the client answers, so that a
                budget holds over all runs and whatever servers ask.  None: every run is counted by itself
    noise       for tests only: the source of the client's coins, which are the operating system's otherwise
    """
    app = flower().clientapp.ClientApp(mods=list(mods or ()))

    @app.train()
    def train(message: Any, context: Any) -> Any:
        def records(plan: Federation, request: Ask, name: str) -> Any:
            problem = data(context)
            if plan.unit == "record":
                return problem
            return OneTerm(lambda w: _term(plan, problem, w, request, name))

        return _answered(message, context, federation, records, noise, physical_batch_size, ledger)

    return app


def sketch_mod(federation: _Shared, *, ledger: _OwnLedger | None = None, noise: Noise | None = None) -> Any:
    """A mod for a `ClientApp` of one's own, whose `train` takes "arrays" and "config" and answers with new "arrays".

    The app sees what a server of Flower's `FedAvg` would send; what leaves the client is the sketch of the change of
    its arrays, clipped and coded as the federation says.  Metrics that the app adds stay with the client.  The
    federation has unit="client", and its space is `space_of(arrays)`.  `ledger` is that of `client_app`.
    """
    app = flower().app

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        if not message.has_content() or RECORD not in message.content:
            return call_next(message, context)

        def change(plan: Federation, request: Ask, name: str) -> OneTerm:
            remedy = 'give unit="client": a mod sends what one client changed'
            validate.check(plan.unit == "client", "unit", plan.unit, remedy)
            return OneTerm(lambda w: w - trained(plan, w))

        def trained(plan: Federation, w: Tensor) -> Tensor:
            arrays, rest = to_arrays(w, plan.whole), message.content.get("config", app.ConfigRecord())
            message.content = app.RecordDict({ARRAYS: arrays, "config": rest})
            reply = call_next(message, context)
            if reply.has_error():
                raise RuntimeError(f"The client's app failed with this error: {reply.error.reason}")
            return from_arrays(reply.content[ARRAYS], plan.whole).to(w.dtype)

        return _answered(message, context, federation, change, noise, ledger=ledger)

    return mod


def _answered(
    message: Any,
    context: Any,
    federation: _Shared,
    terms: _Terms,
    noise: Noise | None = None,
    physical: int | None = None,
    ledger: _OwnLedger | None = None,
) -> Any:
    """The reply to an order, or to a step of secure aggregation."""
    app, plan, content = flower().app, federation, message.content
    if not isinstance(plan, Federation):
        plan = plan(context)
    config = content[RECORD]

    def added(asked: Ask) -> Message:
        return _contribution(plan, asked, context, terms, noise, physical)

    def paid(stage: str) -> None:
        if own is not None:
            own.pay(stage, cost(plan, stage), seeded=noise is not None and noise.seeded)

    def vector() -> Tensor:
        asked = read_ask(content, plan.whole, None)
        (value,) = added(asked).values.values()
        validate.shape((secure.m,), vector=value.value)
        paid(asked.order.stage)
        return value.value

    check_plan(plan, config)
    own = _own_ledger(plan, context, ledger)
    if plan.dropouts is None:
        request = read_ask(content, plan.whole, kept_vectors(context.state, _ITERATE).get("w"))
        if plan.down == "update":
            keep(context.state, _ITERATE, {"w": request.w})
        reply = added(request)
        paid(request.order.stage)
        data = answer(reply, request.data, not plan.private)
    else:
        remedy = "send a step of secure aggregation: this plan sends vectors in no other way"
        validate.check("step" in config, "message", sorted(config), remedy)
        (stage,) = plan.pipe.stages
        if own is not None and config["step"] == "keys":  # no round that cannot be paid for
            own.require(cost(plan, stage.name), stage.name)
        # a wrong m fits no vector of this client, and is refused before it pays for one; the rest is this client's own
        secure = plan.secure(stage, int(config["m"]), stage.releases[0].clipped.init())
        data = secure_step(config, context.state, secure, plan.rounds, vector, noise)
    return app.Message(app.RecordDict({RECORD: app.ConfigRecord({"answer": data})}), reply_to=message)


def _own_ledger(plan: Federation, context: Any, ledger: _OwnLedger | None) -> Ledger | None:
    """The ledger of this client, which must count what the run promises."""
    promise = plan.pipe.promise
    if ledger is None or promise is None:
        return None
    own = ledger(context)
    remedy = f"give one for {promise.adjacency.value}, as this run is: it counts {own.adjacency.value}"
    validate.check(own.adjacency == promise.adjacency, "ledger", own, remedy)
    return own


def cost(plan: Federation, stage: str) -> DpEvent:
    """What one answer of a client costs it: a coin that the server has tossed for it is no longer secret."""
    promise = plan.pipe.promise
    assert promise is not None
    return stage_of(plan.at_clients, stage).event(promise.adjacency)


def _contribution(
    plan: Federation, asked: Ask, context: Any, terms: _Terms, noise: Noise | None = None, physical: int | None = None
) -> Message:
    """What this client adds to a sum: sampled, encoded, clipped, coded."""
    pipe, order, name = plan.at_clients, asked.order, _name_of(context)
    keys = Keys(order.seed, (SecretSource() if noise is None else noise) if plan.private else None)
    memory = kept_vectors(context.state, _MEMORY)
    site = DataSite(pipe, plan.whole, keys, physical=physical, memory=memory, read=lambda: asked.w)
    problem = terms(plan, asked, name)
    if plan.private and plan.unit == "record":
        read_off = [str(leak[0]) for leak in getattr(problem, "read_off", ())]
        remedy = "give it to the objective as a public number: it was read from private records, which costs a budget"
        validate.check(not read_off, "data", read_off, remedy)
        check_linear(plan, problem)
    client = Client(name, problem, asked.visit, plan.terms, 1 / plan.clients)
    message = site.answer(replace(order, w=None), client)
    if pipe.wire.remembers:
        keep(context.state, _MEMORY, site.memory)
    central = plan.private and plan.dropouts is None
    return narrowed(message, plan, stage_of(pipe, order.stage).sampler) if central else message


def _name_of(context: Any) -> str:
    """What a client's draws are keyed by: its partition where it has one, else its node."""
    return str(context.node_config.get("partition-id", context.node_id))


def _term(plan: Federation, problem: Any, w: Tensor, request: Ask, name: str) -> Tensor:
    """The vector of a client that is one term."""
    if plan.local is None:
        mean: Tensor = problem.rows(w).sum() / problem.n
        return mean
    return plan.local.change(problem, w, request.order.t, request.order.seed, name)
