"""An image model with 100 public images: what do they buy at a small epsilon?

    python examples/public_images.py --epsilon 1
    python examples/public_images.py --small    # seconds: does it run?

The images are MNIST (`mnist.npz` in the folder ISTHMUS_DATA) or, without it, the small digits that come with
scikit-learn.  100 of them are declared public: they show in which directions gradients point, so that noise is needed
in those directions only.  Public means public: nothing protects the people in them.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from isthmus import PrivateClassifier, datasets


def images(count):
    """Rows of pixels between 0 and 1, labels, and where they come from."""
    if datasets.available("mnist"):
        x, y = datasets.load("mnist").x_train, datasets.load("mnist").y_train
        source = "MNIST"
    else:
        x, y = load_digits(return_X_y=True)
        x, source = x / 16, "scikit-learn's digits (set ISTHMUS_DATA for MNIST)"
    chosen = np.random.default_rng(0).permutation(len(y))[:count]
    return x[chosen].reshape(len(chosen), -1), y[chosen].astype(int), source


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0, help="the privacy budget of each line")
    parser.add_argument("--small", action="store_true", help="fewer images")
    arguments = parser.parse_args(argv)

    X, y, source = images(720 if arguments.small else 12_000)
    test = len(y) // 6
    public = X[test : test + 100], y[test : test + 100]
    held_out, private = (X[:test], y[:test]), (X[test + 100 :], y[test + 100 :])
    print(f"{source}: {len(private[1])} private images, 100 public, {test} held out and declared public for the scores")

    known = {
        "epsilon": arguments.epsilon,
        "classes": range(10),
        "bounds": (0, 1),
        "max_iter": 15 if arguments.small else None,
    }
    alone = LogisticRegression(max_iter=2000).fit(*public)
    without = PrivateClassifier(**known).fit(*private)
    best = PrivateClassifier(**known, public=public).fit(*private)  # the planner decides what they are used for
    span = PrivateClassifier(**known, public=public, algorithm="pdp_sgd").fit(*private)

    print(f"the 100 public images alone, no private one      accuracy {alone.score(*held_out):.3f}")
    print(f"private images alone, {without.choice_.name}".ljust(48), f"accuracy {without.score(*held_out):.3f}")
    print(f"both, as the planner chooses: {best.choice_.name}".ljust(48), f"accuracy {best.score(*held_out):.3f}")
    print(f"both, noise in the span of public gradients      accuracy {span.score(*held_out):.3f}\n")
    print("Each private line has its own epsilon; releasing all three costs the three together. The second:\n")
    print(best.privacy_.words())


if __name__ == "__main__":
    main()
