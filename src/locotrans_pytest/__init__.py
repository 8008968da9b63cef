"""A pytest plugin: hold a network to its invariance in one's own tests.

It is a package of its own, and imports the library when the fixture is used: pytest loads its
plugins at every start, in every project of the environment.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

    from locotrans.certify import Certificate


@pytest.fixture
def certify_invariance() -> "Callable[..., Certificate]":
    """Return a function that certifies a network, and fails the test with the table if it fails.

    ::

        def test_my_network_is_invariant(certify_invariance):
            certify_invariance(my_network)

    Its arguments are those of `locotrans.certify.certify`; without points it takes four shapes of
    the built-in set, 64 points each, and the search covers within 50 degrees, to be quick.
    """

    def check(
        model: "Callable[[Tensor], Any]",
        points: "Tensor | None" = None,
        *,
        radius: float = 50.0,
        **settings: Any,
    ) -> "Certificate":
        __tracebackhide__ = True
        from locotrans.certify import certify
        from locotrans.data import load_dataset

        if points is None:
            points = load_dataset("builtin", "test", points=64, shapes=4).points
        certificate = certify(model, points, radius=radius, **settings)
        if not certificate.passed:
            pytest.fail(str(certificate), pytrace=False)
        return certificate

    return check
