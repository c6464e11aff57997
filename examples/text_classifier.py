"""A private text classifier: is a film review positive?

    python examples/text_classifier.py --epsilon 3
    python examples/text_classifier.py --small    # seconds: does it run?

The texts are IMDB's 25,000 training reviews as bags of words (`imdb_bow10k.npz` in the folder ISTHMUS_DATA); without
them, made-up reviews.  Words are hashed into a fixed number of columns and every row is scaled to length 1: neither
looks at more than the row itself, so that the bound of a row, `data_norm=1`, is public.  (The 10,000 words of the file
were counted on these very reviews: in earnest, hash the words of the texts themselves.)
"""

import argparse

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from isthmus import PrivateClassifier, datasets

GOOD, BAD = "great superb moving funny brilliant".split(), "awful dull waste poor boring".split()
OTHER = [f"word{k}" for k in range(200)]


def made_up(count, columns):
    """Reviews of twelve words, two of which have an opinion, at times the wrong one; as hashed bags of words."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, count)
    said = y ^ (rng.random(count) < 0.2)
    words = [[*rng.choice(GOOD if praise else BAD, 2), *rng.choice(OTHER, 10)] for praise in said]
    return FeatureHasher(columns, input_type="string").transform(words), y


def imdb(count, columns):
    """The first reviews of a shuffled IMDB; which of 10,000 words a text has, hashed."""
    table = datasets.load("imdb")
    chosen = np.random.default_rng(0).permutation(len(table.y_train))[:count]
    x = sp.csr_matrix(table.x_train)[chosen]
    places = np.random.default_rng(1).integers(0, columns, x.shape[1])  # a public hash of the words
    signs = np.random.default_rng(2).choice([-1.0, 1.0], x.shape[1])
    return x @ sp.csr_matrix((signs, (np.arange(x.shape[1]), places)), (x.shape[1], columns)), table.y_train[chosen]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0, help="the privacy budget")
    parser.add_argument("--small", action="store_true", help="a few texts only")
    arguments = parser.parse_args(argv)

    real = datasets.available("imdb")
    X, y = (imdb if real else made_up)(2000 if arguments.small else 25_000, 256 if arguments.small else 1024)
    X, test = sp.csr_matrix(normalize(X)), len(y) // 5

    model = PrivateClassifier(epsilon=arguments.epsilon, classes=[0, 1], data_norm=1.0).fit(X[test:], y[test:])
    plain = LogisticRegression(C=10).fit(X[test:], y[test:])

    print("IMDB reviews" if real else "made-up reviews (set ISTHMUS_DATA for real ones)", end=": ")
    print(f"{len(y) - test} private texts, {test} held out and declared public")
    print(f"accuracy: private {model.score(X[:test], y[:test]):.3f}", end=", ")
    guessing = max(y[:test].mean(), 1 - y[:test].mean())
    print(f"not private {plain.score(X[:test], y[:test]):.3f}, guessing {guessing:.3f}")
    print(f"trained by {model.choice_.name}\n")
    print(model.privacy_.words())


if __name__ == "__main__":
    main()
