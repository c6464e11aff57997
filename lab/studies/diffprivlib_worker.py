"""diffprivlib on one table, in an environment of its own (it does not work with current scikit-learn).

From scikit-learn 1.4 on its logistic regression adds the noise of a sum to a mean, which is private and useless.

    python -m venv peers && peers/bin/pip install diffprivlib==0.6.5 "scikit-learn==1.3.2" "numpy<2"
    peers/bin/python diffprivlib_worker.py FOLDER "[0.1, 1]" '["diffprivlib forest"]'

Reads FOLDER/in.npz and writes predictions for the test rows into out.npz, by "method | epsilon", and out.json: null,
or what went wrong.  Bounds, classes and the norm are those declared; everything else is diffprivlib's default.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
from diffprivlib import models


def predictions(method, epsilon, given):
    """The test rows' predictions of one model."""
    x, y, bounds = given["x"], given["y"], (given["low"], given["high"])
    classes = list(range(int(given["classes"])))
    if method == "diffprivlib forest":
        return (
            models.RandomForestClassifier(epsilon=epsilon, bounds=bounds, classes=classes)
            .fit(x, y)
            .predict(given["x_test"])
        )
    if method == "diffprivlib naive Bayes":
        return models.GaussianNB(epsilon=epsilon, bounds=bounds).fit(x, y).predict(given["x_test"])
    if method == "diffprivlib logistic":
        model = models.LogisticRegression(epsilon=epsilon, data_norm=float(given["norm"]))
        return model.fit(given["unit"], y).predict(given["unit_test"])
    keep = given["free"]  # a level of each word is left out: the columns beside an intercept must be independent
    unit_bounds = (given["unit_low"][keep], np.ones(len(keep)))
    model = models.LinearRegression(epsilon=epsilon, bounds_X=unit_bounds, bounds_y=tuple(given["target"].tolist()))
    return model.fit(given["unit"][:, keep], y).predict(given["unit_test"][:, keep])


def main():
    """All methods and epsilons asked for."""
    folder, epsilons, methods = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    table = dict(np.load(folder / "in.npz"))
    warnings.simplefilter("ignore")
    predicted, errors = {}, {}
    for method in methods:
        for epsilon in epsilons:
            key = f"{method} | {epsilon:g}"
            errors[key] = None
            try:
                predicted[key] = predictions(method, epsilon, table)
            except Exception as error:  # a peer that fails is a result
                errors[key] = f"{type(error).__name__}: {error}"[:300]
    np.savez(folder / "out.npz", **predicted)
    (folder / "out.json").write_text(json.dumps(errors))


main()
