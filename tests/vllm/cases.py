"""The requests of the vLLM check, by the policy they run under."""

from tests.gateways import CATCH_UP, DIRECT_ALWAYS, ONE_SHOT
from tests.vllm.fleet import Case

PLANS = {
    "direct": (DIRECT_ALWAYS, [Case(300), Case(705), Case(1200, ends_itself=True, max_tokens=300)]),
    "one_shot": (
        ONE_SHOT,
        [
            Case(300, 1),
            Case(704, 30),
            Case(1200, 10, ends_itself=True, max_tokens=300),
            Case(333, 4, has_stop=True),
            Case(400, 13, is_chat=True),
        ],
    ),
    "catch_up": (CATCH_UP, [Case(310, 40, max_tokens=150), Case(720, 90, max_tokens=200), Case(1100, 60)]),
}
TOGETHER = [Case(250, delay_s=0.3), Case(480, delay_s=0.3), Case(650, delay_s=0.3)]
OVERLAPPING = Case(900, delay_s=0.5)
TURN = Case(800, 10)
LEFT = Case(500, delay_s=0.2, max_tokens=2000)
