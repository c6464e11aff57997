"""Choosing epsilon before anybody looks at private rows: what a number means, what it costs, and what it adds up to.

    python examples/choosing_epsilon.py --records 5000 --columns 20
    python examples/choosing_epsilon.py --small    # seconds: does it run?

Everything here is computed from public facts and rehearsed on made-up rows: it spends no budget.
"""

import argparse
import math

import numpy as np

import isthmus
from isthmus import PrivateClassifier
from isthmus.privacy import epsilon as epsilon_of
from isthmus.privacy import noise_multiplier

EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)


def rehearsed(epsilon, n, d, repeats):
    """Accuracies on made-up rows with as many records and columns as the real table."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n + 1000, d))
    y = (X @ np.linspace(1, 0, d) + 0.5 * rng.logistic(size=len(X)) > 0).astype(int)
    model = PrivateClassifier(epsilon=epsilon, classes=[0, 1], bounds=(-1, 1))
    return [model.fit(X[:n], y[:n]).score(X[n:], y[n:]) for _ in range(repeats)]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5000, help="how many the real table has")
    parser.add_argument("--columns", type=int, default=20, help="how many the real table has")
    parser.add_argument("--small", action="store_true", help="one rehearsal of one epsilon")
    arguments = parser.parse_args(argv)
    epsilons, repeats = ((1.0,), 1) if arguments.small else (EPSILONS, 3)

    print(f"{arguments.records} records, {arguments.columns} columns\n")
    print("Somebody holds it for 50 % likely that your record is in the data. How sure can the release make them?")
    print(f"{'epsilon':8} {'at most':>7}   {'the first choice of the planner':38} accuracy in rehearsal")
    for epsilon in epsilons:
        sure = 100 / (1 + math.exp(-epsilon))
        choice = isthmus.plan(n=arguments.records, d=arguments.columns, epsilon=epsilon).best
        scores = rehearsed(epsilon, arguments.records, arguments.columns, repeats)
        print(f"{epsilon:<8g} {sure:5.1f} %   {choice.name:38} {min(scores):.3f} to {max(scores):.3f}")

    once = noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=1.0, steps=1)
    print("\nReleases add up. So many of epsilon 1 each, at delta 1e-5, are together:")
    for releases in (2, 5, 10):
        total = epsilon_of(noise_multiplier=once, sampling_rate=1.0, steps=releases, delta=1e-5)
        print(f"{releases:3} releases: epsilon {total:.2f}")
    print("\nThe guarantee of this script: it read no private row. Choose the smallest epsilon whose rehearsal is good")
    print("enough, before looking at results on the private rows, and give all releases one Ledger(budget=...).")


if __name__ == "__main__":
    main()
