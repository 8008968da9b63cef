"""Cases, carried out: what a network's answers make of each becomes a row of the certificate."""

from collections.abc import Callable, Iterable

from jaxtyping import Float
from torch import Tensor

from locotrans.certify.cases import Case
from locotrans.certify.network import Answers, Network
from locotrans.certify.result import Expected, Row, relative_change, spread_of
from locotrans.certify.search import Search
from locotrans.testing.motions import describe_matrix


class Battery:
    """A network, what is expected of it, and its answers for the clouds as they are."""

    def __init__(
        self,
        network: Network,
        points: Float[Tensor, "b n 3"],
        tolerance: float,
        expected: Callable[[str], Expected],
    ) -> None:
        self.network, self.tolerance, self.expected = network, tolerance, expected
        self.reference = network(points)
        self.answer = next(iter(self.reference))
        self.spread = {name: spread_of(x) for name, x in self.reference.items()}
        for name, x in self.reference.items():
            if not bool(x.isfinite().all()):
                raise ValueError(f"{name} is not finite for the clouds as they are")

    def rows(
        self,
        name: str,
        check: str,
        cases: Iterable[Case],
        outputs: Iterable[str] = (),
        reference: Answers | None = None,
    ) -> list[Row]:
        """Carry out a check; a row for the answer, and for each of some more outputs.

        Args:
            name: the property.
            check: what it is called in the table.
            cases: what is done to the clouds.
            outputs: names of further outputs.
            reference: the outputs as they were, if not for the clouds as they are.
        """
        reference = self.reference if reference is None else reference
        found: dict[str, list[tuple[float, str]]] = {self.answer: [], **{x: [] for x in outputs}}
        changed = []
        for what, clouds, change in cases:
            answers = self.network(clouds)
            for output, seen in found.items():
                before = change(output, reference[output])
                after = _same_points(answers[output], before)
                error = float(relative_change(after, before, self.spread[output]).max())
                seen.append((error, what))
                if output == self.answer:
                    changed.append(changed_decisions(after, before))
        rows = []
        for output, seen in found.items():
            error, where = max(seen)
            share = sum(changed) / len(changed) if output == self.answer else None
            expected = self.expected(name)
            rows.append(Row(name, check, output, expected, error, self.tolerance, share, where))
        return rows

    def skipped(self, name: str, check: str, why: str) -> Row:
        """Return the row of a check that cannot be carried out."""
        expected = self.expected(name)
        return Row(name, check, self.answer, expected, None, self.tolerance, note=why)

    def errors(self, points: Float[Tensor, "b n 3"], R: Float[Tensor, "r 3 3"]) -> Tensor:
        """Return, for each rotation, the largest error over the given clouds, the first ones."""
        clouds = (points.unsqueeze(0) @ R.unsqueeze(1).mT).flatten(0, 1)
        after = self.network(clouds)[self.answer]
        before = self.reference[self.answer][: len(points)]
        before = before.repeat(len(R), *[1] * (before.dim() - 1))
        change = relative_change(after, before, self.spread[self.answer])
        return change.view(len(R), len(points)).amax(1)

    def worst(self, search: Search, points: Float[Tensor, "b n 3"]) -> Row:
        """Return the row of the search, which was carried out on the given clouds."""
        R, error = search.worst
        after = self.network(points @ R.mT)[self.answer]
        changed = changed_decisions(after, self.reference[self.answer][: len(points)])
        expected = self.expected("rotation")
        check, note = "worst rotation found", describe_matrix(R)
        return Row("rotation", check, self.answer, expected, error, self.tolerance, changed, note)


def changed_decisions(after: Float[Tensor, "..."], before: Float[Tensor, "..."]) -> float:
    """Return the share of decisions, largest entries of the last axis, that differ."""
    if after.shape != before.shape:
        return 1.0
    return (after.argmax(-1) != before.argmax(-1)).double().mean().item()


def _same_points(after: Tensor, before: Tensor) -> Tensor:
    """Leave out what belongs to points that were appended."""
    return after[:, : before.shape[1]] if before.dim() > 2 else after
