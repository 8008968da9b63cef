"""Options of models, refused when they are set rather than when they fail."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_options(config: Any, at_least: int = 1) -> None:
    """Raise a ValueError that names the option, unless every field of a config makes sense.

    A choice must be one of its choices, a flag a bool, ``dropout`` in [0, 1), ``k`` at least 1,
    ``categories`` at least 0, and every other number, a width, at least ``at_least``.
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        name, hint, value = field.name, hints[field.name], getattr(config, field.name)
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(hint))}, got {value!r}"
                )
        elif hint is bool:
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        elif hint is float:
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{name} must be a number from 0 to below 1, got {value!r}")
        elif hint is int:
            _check_widths(name, [value], value, {"k": 1, "categories": 0}.get(name, at_least))
        else:
            sizes = get_args(hint)  # (int, ...) or (int, int)
            if not isinstance(value, tuple) or not value:
                raise ValueError(f"{name} must be a tuple of integers, got {value!r}")
            if sizes[-1] is not Ellipsis and len(value) != len(sizes):
                raise ValueError(f"{name} must hold {len(sizes)} integers, got {value!r}")
            if name == "head_widths" and len(value) < 2:
                raise ValueError(f"{name} must hold at least 2 integers, got {value!r}")
            _check_widths(name, value, value, at_least)


def _check_widths(name: str, numbers: Sequence[Any], value: Any, least: int) -> None:
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            what = "an integer" if numbers is not value else "integers"
            raise ValueError(f"{name} must be {what} of at least {least}, got {value!r}")
