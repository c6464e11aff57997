"""Four clients train one model without pooling their records, with short messages, and privately.

    pip install -e '.[flower]'
    python examples/federated.py
    python examples/federated.py --small    # seconds: does it run?

The clients live in this process (`LocalGrid`); with the grid that Flower hands to a server app the same code runs over
machines: examples/flower is such an app.  Records are scikit-learn's breast cancer data, dealt out to the clients; step
sizes were set by hand on them, which is not accounted: in earnest, choose them on public data.
"""

import argparse
import logging

import flwr  # noqa: F401  (first, because it sets how much it logs)
import numpy as np
from sklearn.datasets import load_breast_cancer

from isthmus import Logistic, algorithms
from isthmus.distributed.flower import Federation, LocalGrid, SketchStrategy, client_app
from isthmus.privacy import Ledger

CLIENTS = 4
LARGEST = np.array([40, 50, 300, 4000, 0.3, 0.5, 0.6, 0.4, 0.5, 0.2, 4, 6, 30, 700, 0.1, 0.3, 0.6, 0.1, 0.1, 0.1])
LARGEST = np.append(LARGEST, [50, 60, 400, 6000, 0.4, 1.5, 1.5, 0.5, 0.9, 0.3])  # public: what instruments can show


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0, help="for every record of every client")
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    arguments = parser.parse_args(argv)
    logging.getLogger("flwr").setLevel(logging.WARNING)  # a line for every round otherwise

    X, y = load_breast_cancer(return_X_y=True)
    X = np.column_stack([np.clip(X / LARGEST, 0, 1) - 0.25, np.ones(len(y))]) / np.sqrt(X.shape[1] + 1)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:169], order[169:]  # the 169 are held out, and declared public for the scores

    def records(context):  # runs at a client; in earnest it reads the client's own files
        mine = train[context.node_config["partition-id"] :: CLIENTS]
        return Logistic(X[mine], y[mine], classes=[0, 1])

    def trained(recipe, rounds, ledger=None):
        """The plan is made by the same code at the server and at every client; only messages travel."""
        plan = Federation(recipe, X.shape[1], rounds=rounds, clients=CLIENTS, n=len(train))
        strategy = SketchStrategy(plan, wait=0.0, ledger=ledger)
        strategy.start(LocalGrid(client_app(plan, records), CLIENTS))
        right = np.mean((X[test] @ np.asarray(strategy.found.x) > 0) == y[test])
        traffic = strategy.clients.traffic
        print(f"accuracy {right:.3f}, bytes sent by all clients {traffic.up:,}, by the server {traffic.down:,}")
        return strategy

    rounds = 5 if arguments.small else 40
    print(f"{len(train)} records at {CLIENTS} clients, {rounds} rounds; guessing: {y[test].mean():.3f}")
    print("short messages, not private:   ", end="")
    trained(algorithms.comp_dist_sgd(m=8, step=300.0, codec="qsgd", error_feedback=True), rounds)
    print("short messages, private:       ", end="")
    ledger = Ledger(budget=(arguments.epsilon, 1e-4))
    recipe = algorithms.priv_sgd(epsilon=arguments.epsilon, delta=1e-4, m=16, clip=0.5, step=100.0, n="exact")
    print("\n" + trained(recipe, rounds, ledger).outsiders.words())


if __name__ == "__main__":
    main()
