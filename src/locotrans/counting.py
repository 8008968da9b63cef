"""How many of what, in words."""


def counted(number: int, one: str, more: str | None = None) -> str:
    """Count things: "1 file", "2,000 files".

    Args:
        number: how many.
        one: what one of them is called, with its verb if need be: "file has".
        more: what several are called; by default ``one`` with an s.
    """
    return f"{number:,} {one if number == 1 else more or one + 's'}"
