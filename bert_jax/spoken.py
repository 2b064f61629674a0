"""Times and numbers as people say them, in messages and tables."""

import math

# Numbers from here on are told with an exponent: a diverged run's perplexity has 306 digits.
LONG = 1e9


def duration(seconds: float | None) -> str:
    """Returns a time as people say it: "40 s", "12 min", "2 h 05 min", "9 days", "11 years"."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
    days = seconds / 86400
    return f"{days:,.0f} days" if days < 2 * 365 else f"{days / 365.25:,.0f} years"


def number(value: float, form: str = ".1f") -> str:
    """Returns a number in the given format, or as "1e+304" where that would be long."""
    return format(value, form) if abs(value) < LONG else f"{value:.0e}"
