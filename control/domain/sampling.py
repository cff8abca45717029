"""Which requests are kept whole for search: those that failed or were slow, and of the rest a share.

The share is 1 while a site has little traffic, and halves with each further portion of requests in the same ten
seconds, so that what is kept grows with the logarithm of the traffic. A request's id alone decides which half it is
in, and its weight says how many requests it stands for: sums of weights estimate counts without bias.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

ORDINARY_PORTION = 100
NOTABLE_PORTION = 300
MAX_SPANS = 2000

Span = tuple[int, str, bool]
"""Start of the ten seconds in Unix seconds, site, whether its notable requests."""


def request_weights(request_ids: Sequence[str], halvings: int) -> list[int]:
    """How many requests each of these stands for after so many halvings of the share; 0 if it is not kept."""
    if not halvings:
        return [1] * len(request_ids)
    stands_for = 1 << halvings
    others = stands_for - 1
    return [0 if zlib.crc32(request_id.encode()) & others else stands_for for request_id in request_ids]


@dataclass(slots=True)
class Sampler:
    """Counts requests by span, and says of each whether it is kept."""

    _seen: dict[Span, int] = field(default_factory=dict)

    def weights(self, request_ids: Sequence[str], span: Span) -> list[int]:
        """The weights of the next requests of a span; 0 for those that are not kept."""
        seen = self._seen.get(span, 0)
        end = self._seen[span] = seen + len(request_ids)
        portion = NOTABLE_PORTION if span[2] else ORDINARY_PORTION
        weights: list[int] = []
        while (at := seen + len(weights)) < end:
            halvings = (at // portion).bit_length()
            # The share stays the same until the requests seen have doubled.
            some = request_ids[len(weights) : (portion << halvings) - seen]
            weights += request_weights(some, halvings)
        return weights

    def forget(self) -> None:
        """Drop the spans that were met first where there are too many; one that comes again begins anew."""
        for span in list(self._seen)[: max(len(self._seen) - MAX_SPANS, 0)]:
            del self._seen[span]
