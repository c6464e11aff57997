"""What docs/estimators.md says to warn does."""

import warnings

import numpy as np
import pytest

from isthmus import PrivacyBudgetWarning, PrivacyLeakWarning, PrivateClassifier


@pytest.mark.parametrize(
    ("left_out", "told"), [("classes", "classes"), ("bounds", "bounds"), ("data_norm", "data_norm")]
)
def test_what_is_said_to_warn_does(left_out: str, told: str) -> None:
    x = np.linspace(-1, 1, 300)[:, None]
    known = {"classes": [0, 1], "bounds": (-1, 1), "max_iter": 2}
    known |= {"classes": None} if left_out == "classes" else {left_out: "data"}
    if left_out == "data_norm":
        known["bounds"] = None
    with pytest.warns(PrivacyLeakWarning, match=told):
        model = PrivateClassifier(**known).fit(x, (x[:, 0] > 0).astype(int))
    assert any("read from the data" in leak for leak in model.privacy_.leaks)


def test_cross_validation_is_said_to_spend() -> None:
    from sklearn.model_selection import cross_val_score

    x = np.linspace(-1, 1, 300)[:, None]
    model = PrivateClassifier(classes=[0, 1], bounds=(-1, 1), max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyBudgetWarning)
        with pytest.raises(PrivacyBudgetWarning, match="every fit"):
            cross_val_score(model, x, (x[:, 0] > 0).astype(int), cv=2, error_score="raise")
