"""The side of a client: a `ClientApp` that answers orders, and a mod that lets an app of one's own answer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from isthmus.base import validate
from isthmus.core.parts import Records, said
from isthmus.core.pipeline import Client
from isthmus.core.wire import Keys, Message
from isthmus.distributed.flower import federation as agreed
from isthmus.distributed.flower.federation import ARRAYS, RECORD, Federation, flower, from_arrays, to_arrays
from isthmus.distributed.order import DataSite, Order, _stage_of
from isthmus.distributed.secagg import BadMessage, SecureClient, SecurePlan
from isthmus.distributed.secagg.wire import Kind, read
from isthmus.privacy import Ledger, SecretSource, Source
from isthmus.privacy.event_json import DpEvent

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict
    from flwr.app import Message as Letter
    from flwr.clientapp import ClientApp

_ITERATE, _MEMORY, _SECURE = "isthmus.iterate", "isthmus.memory", "isthmus.secure"
_Shared = Federation | Callable[["Context"], Federation]
"""What server and clients share, or how it follows from a client's context (its `run_config`)."""
_Config = dict[str, Any]
_OwnLedger = Callable[["Context"], Ledger]
"""The ledger of a client, from its context."""
_Terms = Callable[[Federation, Order, str], Records]
"""The records of a client for an order, under its name."""


def client_app(
    federation: _Shared,
    data: Callable[[Context], Records],
    *,
    mods: Sequence[Any] | None = None,
    physical_batch_size: int | None = None,
    ledger: _OwnLedger | None = None,
    noise: Source | None = None,
) -> ClientApp:
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
        def terms(plan: Federation, order: Order, name: str) -> Records:
            problem, local = data(context), plan.local
            if plan.unit == "record":
                return problem
            if local is None:
                return agreed._OneTerm(lambda w: problem.rows(w).sum() / problem.n)
            return agreed._OneTerm(lambda w: local.change(problem, w, order.t, order.seed, name))

        return _Site(federation, context, terms, noise or SecretSource(), physical_batch_size, ledger).reply(message)

    return app


def sketch_mod(
    federation: _Shared, *, ledger: _OwnLedger | None = None, noise: Source | None = None
) -> Callable[[Letter, Context, Callable[[Letter, Context], Letter]], Letter]:
    """A mod for a `ClientApp` of one's own, whose `train` takes "arrays" and "config" and answers with new "arrays".

    The app sees what a server of Flower's `FedAvg` would send; what leaves the client is the sketch of the change of
    its arrays, clipped and coded as the federation says.  Metrics that the app adds stay with the client.  The
    federation has unit="client", and its space is `space_of(arrays)`.  `ledger` is that of `client_app`.
    """
    app = flower().app

    def mod(message: Letter, context: Context, call_next: Callable[[Letter, Context], Letter]) -> Letter:
        if not message.has_content() or RECORD not in message.content:
            return call_next(message, context)

        def change(plan: Federation, order: Order, name: str) -> Records:
            remedy = 'give unit="client": a mod sends what one client changed'
            validate.check(plan.unit == "client", "unit", plan.unit, remedy)
            return agreed._OneTerm(lambda w: w - trained(plan, w))

        def trained(plan: Federation, w: Tensor) -> Tensor:
            arrays, rest = to_arrays(w, plan.whole), message.content.get("config", app.ConfigRecord())
            message.content = app.RecordDict({ARRAYS: arrays, "config": rest})
            reply = call_next(message, context)
            if reply.has_error():
                raise RuntimeError(f"The client's app failed with this error: {reply.error.reason}")
            return from_arrays(reply.content.array_records[ARRAYS], plan.whole).to(w.dtype)

        return _Site(federation, context, change, noise or SecretSource(), None, ledger).reply(message)

    return mod


def cost(plan: Federation, stage: str) -> DpEvent:
    """What one answer of a client costs it: a coin that the server has tossed for it is no longer secret."""
    promise = plan.pipe.promise
    assert promise is not None
    return _stage_of(plan.at_clients, stage).event(promise.adjacency)


@dataclass(frozen=True)
class _Site:
    """A client with a message: what it shares with the server, its records, and where it keeps what it remembers."""

    shared: _Shared
    context: Context
    terms: _Terms
    noise: Source
    physical: int | None
    own_ledger: _OwnLedger | None

    @cached_property
    def plan(self) -> Federation:
        """What it shares with the server."""
        return self.shared if isinstance(self.shared, Federation) else self.shared(self.context)

    @cached_property
    def name(self) -> str:
        """What its draws are keyed by: its partition where it has one, else its node."""
        return str(self.context.node_config.get("partition-id", self.context.node_id))

    @cached_property
    def ledger(self) -> Ledger | None:
        """Its own, where it has one and the run is private."""
        promise = self.plan.pipe.promise
        if self.own_ledger is None or promise is None:
            return None
        own = self.own_ledger(self.context)
        remedy = f"give one for {promise.adjacency.value}, as this run is: it counts {own.adjacency.value}"
        validate.check(own.adjacency == promise.adjacency, "ledger", own, remedy)
        return own

    def reply(self, message: Letter) -> Letter:
        """The reply to an order, or to a step of secure aggregation."""
        plan, content, app = self.plan, message.content, flower().app
        config = agreed.config_of(content)
        sent = config.get("plan")  # looked at before any record is
        remedy = f"give server and clients the same Federation: this one is {agreed.ANOTHER} than this client's"
        validate.check(sent == plan.digest, "plan", sent, f"{remedy} ({plan.digest})")
        if plan.dropouts is None:
            order = agreed._read_ask(content, plan.whole, self.kept(_ITERATE).get("w"))
            if plan.down == "update" and order.w is not None:
                self.context.state[_ITERATE] = agreed.record_of({"w": order.w})
            added = self.added(order, int(config["visit"]))
            self.pay(order.stage)
            data = agreed.answer(added, config["order"], not plan.private)
        else:
            data = self.secured(content, config)
        return app.Message(app.RecordDict({RECORD: app.ConfigRecord({"answer": data})}), reply_to=message)

    def kept(self, name: str) -> dict[str, Tensor]:
        """Vectors that this client keeps between messages."""
        if name not in self.context.state:
            return {}
        return agreed.vectors_of(self.context.state.array_records[name])

    def added(self, order: Order, visit: int) -> Message:
        """What this client adds to a sum: sampled, encoded, clipped, coded."""
        plan, pipe = self.plan, self.plan.at_clients
        keys = Keys(order.seed)
        if plan.private:
            keys = Keys(order.seed, self.noise)
        site = DataSite(pipe, plan.whole, keys, physical=self.physical, memory=self.kept(_MEMORY))
        problem = self.terms(plan, order, self.name)
        if plan.private and plan.unit == "record":
            read_off = [str(leak[0]) for leak in said(problem, "read_off")]
            remedy = "give it to the objective as a public number: it was read from private records, unpaid for"
            validate.check(not read_off, "data", read_off, remedy)
            fits = not plan.linear or said(problem, "linear")  # others round more than the bound holds
            kind = type(problem).__name__
            validate.check(fits, "linear", plan.linear, f"give linear=False: {kind} is not a linear model")
        message = site.answer(order, Client(self.name, problem, visit, plan.terms, 1 / plan.clients))
        if pipe.wire.remembers:
            self.context.state[_MEMORY] = agreed.record_of(site.memory)
        if plan.private and plan.dropouts is None:
            return agreed._narrowed(message, plan, _stage_of(pipe, order.stage).sampler)
        return message

    def pay(self, stage: str) -> None:
        """Charge the client's own ledger, before an answer leaves."""
        if self.ledger is not None:
            self.ledger.pay(stage, cost(self.plan, stage), seeded=self.noise.seeded)

    def secured(self, content: RecordDict, config: _Config) -> bytes:
        """The answer to a step of secure aggregation."""
        plan = self.plan
        remedy = "send a step of secure aggregation: this plan sends vectors in no other way"
        validate.check("step" in config, "message", sorted(config), remedy)
        (stage,) = plan.pipe.stages
        if self.ledger is not None and config["step"] == "keys":  # no round that cannot be paid for
            self.ledger.require(cost(plan, stage.name), stage.name)
        # a wrong m fits no vector of this client, and is refused before it pays for one; the rest is this client's own
        secure = plan.secure(stage, int(config["m"]), stage.releases[0].clipped.init())

        def vector() -> Tensor:
            order = agreed._read_ask(content, plan.whole, None)
            (value,) = self.added(order, int(config["visit"])).values.values()
            validate.shape((secure.m,), vector=value.value)
            self.pay(order.stage)
            return value.value

        return _secure_step(config, self.context.state, secure, plan.rounds, vector, self.noise)


def _secure_step(
    config: _Config, state: RecordDict, plan: SecurePlan, rounds: int, vector: Callable[[], Tensor], noise: Source
) -> bytes:
    """A client's answer to one step; `vector` makes what it adds, and is called when it is due.

    Of a run of so many rounds a client sends so many vectors and no more, whatever a server asks; one that has no
    vector left does not come to another round.
    """
    step, data = str(config["step"]), config["data"]
    saved: dict[str, Any] = {"sent": 0, **state.get(_SECURE, {})}
    validate.one_of(("keys", "letters", "vector", "shares"), step=step)
    remedy = "begin a new plan: this client has sent a vector for every round of this one"
    validate.check(step not in ("keys", "vector") or saved["sent"] < rounds, "rounds", rounds, remedy)
    if step == "keys":
        session, _ = read(data, Kind.INVITATION)
        if saved.get("session") == session:
            raise BadMessage("This client has answered the invitation before: every message is answered once")
        saved["session"] = session
        client = SecureClient(plan, int(config["index"]), noise)
        answer = client.keys(data)
    else:
        validate.check("client" in saved, "step", step, "invite the client first: it keeps nothing of this round")
        client = SecureClient.from_bytes(plan, saved["client"], noise)
        if step == "letters":
            answer = client.shares(data)
        elif step == "shares":
            answer = client.reveal(data)
        else:
            answer = client.masked(data, vector)
            saved["sent"] += 1
    state[_SECURE] = flower().app.ConfigRecord({**saved, "client": client.to_bytes()})
    return answer
