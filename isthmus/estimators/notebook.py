"""Fitted estimators in a notebook: scikit-learn's diagram, and the guarantee below it."""

from __future__ import annotations

from typing import Any

from isthmus.base import notebook


class ShowsGuarantee:
    """Adds a card with the guarantee to what scikit-learn shows of an estimator; before a fit, what it will spend."""

    def _repr_html_inner(self) -> str:
        """What a notebook shows where it asks for HTML."""
        diagram: str = super()._repr_html_inner()  # type: ignore[misc]
        return diagram + self._guarantee_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """What a notebook shows where it asks for everything; scikit-learn decides whether that has HTML."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] += self._guarantee_html()
        return bundle

    def _guarantee_html(self) -> str:
        """The statement of a private fit; a warning for one that is not; the budget before a fit."""
        if not hasattr(self, "privacy_"):
            return notebook.card(f"Not fitted yet: a fit will spend epsilon = {getattr(self, 'epsilon', None)}")
        statement: Any = self.privacy_
        if statement is None:
            text = "It was fitted without noise, and may reveal the records that it was trained on."
            return notebook.card("This model is NOT private", notebook.paragraph(text), tone="bad")
        return str(statement._repr_html_())
