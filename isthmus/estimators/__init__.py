"""scikit-learn estimators, `PrivateSearch` and `private_score`, and what they warn of."""

from isthmus.estimators.classifier import PrivateClassifier
from isthmus.estimators.leaks import PrivacyBudgetWarning, PrivacyLeakWarning
from isthmus.estimators.regressor import PrivateRegressor
from isthmus.estimators.scoring import Scores, private_score
from isthmus.estimators.search import PrivateSearch
from isthmus.estimators.stored import load, save

__all__ = [
    "PrivacyBudgetWarning",
    "PrivacyLeakWarning",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateSearch",
    "Scores",
    "load",
    "private_score",
    "save",
]
