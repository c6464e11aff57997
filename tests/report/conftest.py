"""The browser's tests run where there is a browser; with ISTHMUS_BROWSER set they always run, and fail without one."""

from chromium import PATH

collect_ignore = [] if PATH else ["test_report_browser.py"]


def pytest_report_header() -> str:
    """Which browser is used."""
    return f"browser: {PATH or 'none: the report is tested without one (install chromium, or set ISTHMUS_BROWSER)'}"
