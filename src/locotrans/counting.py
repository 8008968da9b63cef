"""How many of what, in words."""

from collections.abc import Sequence


def counted(number: int, one: str, more: str | None = None) -> str:
    """Count things: "1 file", "2,000 files".

    Args:
        number: how many.
        one: what one of them is called, with its verb if need be: "file has".
        more: what several are called; by default ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Name things, and how many more there are: "a, b, c, d, e and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
