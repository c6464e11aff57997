"""A private model of a table: the one line that changes for a scikit-learn user.

    python examples/private_table.py --epsilon 3

The table is scikit-learn's breast cancer data, 30 measurements of 569 people.  Nothing is known about the ranges of the
columns: they are bought from the same budget.  A third of the records is held out and declared public, for scores.
"""

import argparse
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isthmus import PrivateClassifier
from isthmus.estimators import load, save


def main(epsilon: float, path: Path | None) -> None:
    X, y = load_breast_cancer(return_X_y=True, as_frame=False)
    X, X_test, y, y_test = train_test_split(X, y, test_size=1 / 3, random_state=0, stratify=y)

    # scikit-learn; the scaler and the model both learn from the records
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    # the same, privately; the labels are public because the study says what it asks
    model = PrivateClassifier(epsilon=epsilon, classes=[0, 1]).fit(X, y)

    print(f"accuracy on {len(y_test)} held-out records: private {model.score(X_test, y_test):.3f}", end="")
    print(f", not private {plain.score(X_test, y_test):.3f}, always benign {y_test.mean():.3f}\n")
    print(f"trained by {model.choice_.name} in {model.n_iter_} rounds, {model.seconds_:.1f} s\n")
    print(model.privacy_.words())
    if path is not None:
        save(model, path)
        same = (load(path).predict(X_test) == model.predict(X_test)).all()
        print(f"\nsaved to {path}; read again it predicts the same: {same}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0, help="the privacy budget")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the model, without pickle")
    given = parser.parse_args()
    main(given.epsilon, given.save)
