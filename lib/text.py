"""Numbers as a person reads them."""


def duration(seconds: float) -> str:
    """Seconds as `45 s`, `12 min`, `3 h 05 min`, `4 days` or `1,200 years`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes >= 72 * 60:
        days = minutes / 60 / 24
        return f"{days:,.0f} days" if days < 2 * 365 else f"{days / 365.25:,.0f} years"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
