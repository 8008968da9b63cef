"""What a certificate says: a row for each check, and the verdict."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from locotrans.certify.search import Search

Expected = Literal["keeps", "breaks", "reported"]


@dataclass(frozen=True)
class Row:
    """One check."""

    name: str
    """The property that is kept or broken."""
    check: str
    """What was done to the clouds."""
    output: str
    expected: Expected
    """Whether the error must stay within the tolerance, must exceed it, or is only told."""
    error: float | None
    """The largest change, in units of the spread; None where it was not measured."""
    tolerance: float
    changed: float | None = None
    """Share of decisions (largest logit) that changed."""
    note: str = ""
    """Where the largest error was met, or why nothing was measured."""

    @property
    def verdict(self) -> str:
        """Pass or fail; reported where nothing was expected."""
        if self.error is None:
            return "not measured"
        if self.expected == "reported":
            return "reported"
        kept = self.error <= self.tolerance
        return "pass" if kept == (self.expected == "keeps") else "fail"


@dataclass(frozen=True)
class Certificate:
    """The rows of a network, and what they were measured on."""

    target: str
    clouds: str
    """Which clouds, how many and of how many points."""
    precision: str
    rows: tuple[Row, ...]
    search: Search
    declared: tuple[str, ...] = ()
    """Properties that the network is said to keep or to break."""

    @property
    def failures(self) -> list[Row]:
        """The checks that failed."""
        return [row for row in self.rows if row.verdict == "fail"]

    @property
    def unmeasured(self) -> list[str]:
        """What was declared, and not seen by any check."""
        seen = {row.name for row in self.rows if row.verdict in ("pass", "fail")}
        return [name for name in self.declared if name not in seen]

    @property
    def passed(self) -> bool:
        """Nothing failed, and all that was declared was measured."""
        return not self.failures and not self.unmeasured

    def summary(self) -> str:
        """Say in a sentence what was found."""
        if self.passed:
            return f"{self.target} passes: it keeps what it declares, within the tolerances"
        if not self.failures:
            text = f"{self.target} does not pass: not measured here: {', '.join(self.unmeasured)}"
            return text + ("; that takes two clouds" if self.unmeasured == ["batch"] else "")
        worst = max(self.failures, key=lambda row: row.error or 0.0)
        return (
            f"{self.target} fails {len(self.failures)} of {len(self.rows)} checks; by most in "
            f"{worst.check!r}: {worst.output} {_size(worst.error)} of the spread, where "
            f"{'at most' if worst.expected == 'keeps' else 'more than'} {worst.tolerance:.0e} "
            "is asked for"
        )

    def lines(self) -> list[str]:
        """Lay the rows out as text, for a terminal of any width or a test's message."""
        header = ("check", "output", "error", "allowed", "decisions", "", "")
        cells = [header] + [
            (
                row.check,
                row.output,
                _size(row.error),
                {"keeps": "<= ", "breaks": "> ", "reported": ""}[row.expected]
                + ("" if row.expected == "reported" else f"{row.tolerance:.0e}"),
                "" if row.changed is None else f"{row.changed:.1%} change",
                row.verdict.upper() if row.verdict == "fail" else row.verdict,
                row.note,
            )
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in cells) for i in range(6)]
        return [
            "  ".join([*(x.ljust(w) for x, w in zip(line, widths, strict=False)), line[6]]).rstrip()
            for line in cells
        ]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.target}, {self.precision}, on {self.clouds}",
                *self.lines(),
                f"search: {len(self.search.errors):,} rotations; whatever goes wrong on a whole "
                f"ball of rotations of radius {self.search.radius:.1f} degrees or more was met",
                self.summary(),
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        R, error = self.search.worst
        return {
            "target": self.target,
            "passed": self.passed,
            "summary": self.summary(),
            "clouds": self.clouds,
            "precision": self.precision,
            "unit": "largest change / largest distance of an answer from the mean over the clouds",
            "rows": [
                {**asdict(row), "error": _number(row.error), "verdict": row.verdict}
                for row in self.rows
            ],
            "search": {
                "rotations": len(self.search.errors),
                "guaranteed_radius_degrees": self.search.radius,
                "worst_rotation": R.tolist(),
                "worst_error": _number(error),
            },
        }


def relative_change(
    value: Float[Tensor, "..."],
    expected: Float[Tensor, "b ..."],
    spread: float,
) -> Float[Tensor, " b"]:
    """Return the largest change of each cloud's output in units of the spread; nan is infinite."""
    if value.shape != expected.shape:
        return torch.full((len(expected),), torch.inf, dtype=torch.float64)
    change = (value - expected).abs().flatten(1).amax(1)
    return torch.nan_to_num(change, nan=torch.inf, posinf=torch.inf) / spread


def spread_of(x: Float[Tensor, "b *shape"]) -> float:
    """Return the largest distance of an output from its mean over the clouds.

    It is what tells the clouds apart. Measured by it, an error cannot hide behind a large constant,
    and a change of 1 is as large as the difference between two shapes.
    Degenerate: of a single cloud, and of an output that is the same for all, the largest entry.
    """
    x = x.double()
    spread = float((x - x.mean(0)).abs().max()) if len(x) > 1 else 0.0
    size = float(x.abs().max())
    return spread if spread > 1e-12 * size else (size or 1.0)


def _size(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _number(error: float | None) -> float | str | None:
    """Return what JSON can hold: it has no infinity."""
    return "inf" if error == math.inf else error
