"""scikit-learn estimators, `PrivateSearch`, `private_score` and `private_summary`, and what they warn of."""

from isthmus.estimators.exported import to_onnx
from isthmus.estimators.linear import PrivateClassifier, PrivateRegressor
from isthmus.estimators.scoring import Scores, private_score
from isthmus.estimators.search import PrivateSearch
from isthmus.estimators.stored import load, save
from isthmus.estimators.summary import Summary, private_summary
from isthmus.privacy.leaks import PrivacyBudgetWarning, PrivacyLeakWarning

__all__ = ["PrivacyBudgetWarning", "PrivacyLeakWarning", "PrivateClassifier", "PrivateRegressor", "PrivateSearch"]
__all__ += ["Scores", "Summary", "load", "private_score", "private_summary", "save", "to_onnx"]
