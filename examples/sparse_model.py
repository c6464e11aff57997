"""A sparse model from ten times fewer numbers: gradients are sent as short sketches, and the l1 ball brings them back.

    python examples/sparse_model.py
    python examples/sparse_model.py --small    # seconds: does it run?

Two thousand features, of which twenty matter.  Plain SGD sends all 2,000 numbers of every gradient; CompSGD sends a
sketch of 200, and finds the point of the l1 ball that explains it.  The last line does the same with noise on the
sketch, which makes it private.
Data are made up, so that the features that matter are known.
"""

import argparse

import numpy as np

import isthmus


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=4.0, help="of the private line")
    parser.add_argument("--small", action="store_true", help="ten times smaller")
    arguments = parser.parse_args(argv)

    n, d, matter, batches, rounds = (600, 100, 4, 60, 10) if arguments.small else (20_000, 2000, 20, 2500, 100)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * n, d)) / np.sqrt(d)
    true = np.zeros(d)
    true[:matter] = 6 * np.sqrt(d) / np.sqrt(matter)
    y = np.where(X @ true + rng.logistic(size=2 * n) > 0, 1, -1)
    objective = isthmus.Logistic(X[:n], y[:n], classes=(-1, 1))
    ball = isthmus.L1Ball(float(np.abs(true).sum()))  # the radius says how sparse the answer may be

    private = {"epsilon": arguments.epsilon, "delta": 1e-6, "clip": 0.5, "n": "exact"}
    recipes = {
        "SGD, whole gradients": isthmus.algorithms.sgd(step=20.0, batch_size=32),
        "CompSGD, sketches of a tenth": isthmus.algorithms.comp_sgd(
            m=d // 10, step=20.0, batch_size=32, error_feedback=True
        ),
        "private, sketches of a tenth": isthmus.algorithms.priv_sgd(**private, m=d // 10, step=20.0),
    }
    print(f"{n} records, {d} features, {matter} of them matter; {n} further records for the scores")
    print(f"{'':30} accuracy  numbers sent  weight on the {matter} that matter")
    for name, recipe in recipes.items():
        steps = rounds if name.startswith("private") else batches  # a private round looks at all records
        result = isthmus.minimize(objective, recipe, constraint=ball, steps=steps, seed=0, progress=False)
        w = np.asarray(result.x)
        share = np.abs(w[:matter]).sum() / max(np.abs(w).sum(), 1e-12)
        right = np.mean(np.where(X[n:] @ w > 0, 1, -1) == y[n:])
        print(f"{name:30} {right:8.3f}  {result.dims:12,}  {100 * share:6.0f} %")
    print("\nThe first two lines promise nothing about privacy. The last one:\n")
    print(result.privacy.words())


if __name__ == "__main__":
    main()
