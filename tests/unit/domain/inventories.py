"""Inventories that fit together, drawn by hypothesis."""

from hypothesis import strategies as st

from control.domain.inventory import AttentionKind, ChipProfile, Inventory, ModelProfile
from control.domain.topology import Gateway, Link, Node, NodeState, Role, Site

NETWORKS = ("10.0.0.0/8", "fd00::/8")

names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True)
products = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:/-]{0,8}[A-Za-z0-9])?", fullmatch=True)
rates = st.floats(1, 1e18)
labels = st.dictionaries(
    st.from_regex(r"[a-z0-9][a-z0-9_./-]{0,8}", fullmatch=True),
    st.from_regex(r"([A-Za-z0-9_.:/@+-]([A-Za-z0-9_.:/ @+-]{0,8}[A-Za-z0-9_.:/@+-])?)?", fullmatch=True),
    max_size=3,
)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x7f"), max_size=12)


def url(number):
    return f"http://10.0.{number // 250}.{number % 250 + 1}:8000/n"


@st.composite
def inventories(draw):
    """Any inventory without a problem."""
    sites = draw(st.lists(names, max_size=3, unique=True))
    chips = draw(st.lists(products, max_size=2, unique=True))
    models = draw(st.lists(products, max_size=2, unique=True))
    nodes = draw(st.lists(names, max_size=4, unique=True)) if sites and models else []
    gateways = draw(st.lists(names, max_size=2, unique=True)) if sites else []
    pairs = [(source, target) for source in sites for target in sites if source != target]
    pairs = draw(st.lists(st.sampled_from(pairs), max_size=3, unique=True)) if pairs else []
    links = draw(st.lists(names, min_size=len(pairs), max_size=len(pairs), unique=True))
    return Inventory(
        sites=tuple(Site(name, draw(texts), NETWORKS) for name in sorted(sites)),
        chips=tuple(
            ChipProfile(
                name, draw(rates), draw(st.integers(1, 10**15)), draw(rates), draw(rates), draw(st.floats(0, 1e6))
            )
            for name in sorted(chips)
        ),
        models=tuple(
            ModelProfile(
                name,
                draw(st.integers(1, 10**9)),
                draw(st.integers(1, 65_536)),
                draw(st.none() | st.integers(1, 10_000)),
                draw(st.none() | st.sampled_from(AttentionKind)),
                draw(texts),
                draw(st.none() | st.integers(1, 10**8)),
                draw(labels),
            )
            for name in sorted(models)
        ),
        nodes=tuple(
            Node(
                name,
                draw(st.sampled_from(sites)),
                draw(st.sampled_from(Role)),
                url(number),
                draw(st.sampled_from(["llama", "emulated", "vllm"])),
                draw(st.sampled_from(models)),
                draw(st.integers(1, 100_000)),
                draw(st.sampled_from(NodeState)),
                draw(st.sampled_from(["", *chips])),
                draw(labels),
            )
            for number, name in enumerate(sorted(nodes))
        ),
        links=tuple(
            Link(name, *pair, draw(rates), draw(st.floats(0, 60)), draw(st.none() | rates), *relay)
            for name, pair, relay in zip(
                sorted(links), pairs, draw(st.lists(relays, min_size=len(pairs), max_size=len(pairs))), strict=True
            )
        ),
        gateways=tuple(
            Gateway(name, draw(st.sampled_from(sites)), url(1000 + number))
            for number, name in enumerate(sorted(gateways))
        ),
        model=draw(st.sampled_from(models)) if models else "",
    )


relays = st.sampled_from([("", 0, ""), ("10.0.0.9", 9100, "http://10.0.0.9:9101"), ("fd00::9", 1, "")])
