"""scikit-learn estimators: `PrivateClassifier`, `PrivateRegressor`, `PrivateSearch`, and what they warn of."""

from isthmus.estimators.classifier import PrivateClassifier
from isthmus.estimators.leaks import PrivacyBudgetWarning, PrivacyLeakWarning
from isthmus.estimators.regressor import PrivateRegressor
from isthmus.estimators.search import PrivateSearch
from isthmus.estimators.stored import load, save

__all__ = [
    "PrivacyBudgetWarning",
    "PrivacyLeakWarning",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateSearch",
    "load",
    "save",
]
