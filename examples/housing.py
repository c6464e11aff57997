"""House prices with differential privacy: a regression whose columns have public ranges.

    python examples/housing.py --epsilon 1
    python examples/housing.py --small    # seconds: does it run?

The table is California housing (`california_housing.npz` in the folder ISTHMUS_DATA); without it, made-up districts
with the same columns.  Ranges of columns and prices are written down here, as wide as they may be; nothing is read off
the records.
"""

import argparse

import numpy as np
from sklearn.linear_model import LinearRegression

from isthmus import PrivateRegressor, datasets

RANGES = {  # public: what a district may have
    "longitude": (-125, -114),
    "latitude": (32, 42),
    "housing_median_age": (0, 52),
    "total_rooms": (0, 10_000),
    "total_bedrooms": (0, 2_000),
    "population": (0, 5_000),
    "households": (0, 2_000),
    "median_income": (0, 15),
}
PRICES = (0, 500_000)  # dollars


def districts(count):
    """Rows and prices, and where they come from."""
    rng = np.random.default_rng(0)
    if datasets.available("california_housing"):
        table = datasets.load("california_housing")
        chosen = rng.permutation(len(table.y_train))[:count]
        return table.x_train[chosen], table.y_train[chosen], "California housing"
    low, high = np.array(list(RANGES.values()), dtype=float).T
    X = rng.uniform(low, high, (count, len(RANGES)))
    scaled = (X - low) / (high - low)
    y = 100_000 * (1 + 3 * scaled[:, 7] + scaled[:, 2] - scaled[:, 0] + 0.3 * rng.normal(size=count))
    return X, np.clip(y, *PRICES), "made-up districts (set ISTHMUS_DATA for the real ones)"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=1.0, help="the privacy budget")
    parser.add_argument("--small", action="store_true", help="a few records only")
    arguments = parser.parse_args(argv)

    X, y, source = districts(2000 if arguments.small else 20_640)
    test = len(y) // 5  # held out, and declared public for the scores
    low, high = np.array(list(RANGES.values()), dtype=float).T
    X = np.clip(X, low, high)

    model = PrivateRegressor(epsilon=arguments.epsilon, bounds=(low, high), target_bounds=PRICES)
    model.fit(X[test:], y[test:])
    plain = LinearRegression().fit(X[test:], y[test:])

    print(f"{source}: {len(y) - test} private records, {test} held out")
    for name, fitted in (("private", model), ("a line, not private", plain)):
        off = np.abs(fitted.predict(X[:test]) - y[:test]).mean()
        print(f"{name:20} R^2 {fitted.score(X[:test], y[:test]):6.3f}, off by {off:,.0f} dollars on average")
    effects = dict(zip(RANGES, model.effects().values(), strict=True))  # what each column adds, over its range
    strongest = max(RANGES, key=lambda column: np.ptp(effects[column][1]))
    print(f"what moves the price most, in the private model: {strongest}\n")
    print(model.privacy_.words())


if __name__ == "__main__":
    main()
