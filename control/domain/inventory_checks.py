"""What is wrong with an inventory as a whole: names, references between items, and addresses."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from control.domain.addresses import host_problem, network_problem, url_problem
from control.domain.answer_parser import PARSERS
from control.domain.inventory import Inventory, Kind, ModelProfile
from control.domain.policy import FieldProblem
from control.domain.topology import Gateway, Link, Node, Site

ENGINES = ("llama", "emulated", "vllm")

_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# As vendors write them: H20-96GB, Qwen/Qwen3-8B.
_PRODUCT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:/-]{0,126}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z0-9][a-z0-9_./-]{0,62}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9_.:/ @+-]{0,128}")
_PRODUCTS = frozenset({Kind.CHIP, Kind.MODEL})


def inventory_problems(inventory: Inventory) -> list[FieldProblem]:
    """Every problem, each under the path of its field, such as `nodes.ams-p-01.url`."""
    sites = {site.name: site for site in inventory.sites}
    return [
        *_name_problems(inventory),
        *(problem for site in inventory.sites for problem in _site_problems(site)),
        *(problem for model in inventory.models for problem in _label_problems(Kind.MODEL, model)),
        *(problem for model in inventory.models for problem in _parser_problems(model)),
        *_node_problems(inventory, sites),
        *_link_problems(inventory, sites),
        *_gateway_problems(inventory.gateways, sites),
        *_default_model_problems(inventory),
    ]


def new_problems(current: Inventory, wanted: Inventory) -> list[FieldProblem]:
    """The problems that a change would bring; what was wrong before does not stand in its way."""
    known = set(inventory_problems(current))
    return [problem for problem in inventory_problems(wanted) if problem not in known]


def _name_problems(inventory: Inventory) -> Iterator[FieldProblem]:
    for kind in Kind:
        items = inventory.items(kind)
        names = Counter(item.name for item in items)
        for name, count in names.items():
            if count > 1:
                yield FieldProblem(f"{kind}.{name}", f"Stands there {count} times.")
            if kind in _PRODUCTS and not _PRODUCT_NAME.fullmatch(name):
                yield FieldProblem(f"{kind}.{name}.name", "Must have letters, digits and `_ . : / -` inside.")
            if kind not in _PRODUCTS and not _PLAIN_NAME.fullmatch(name):
                yield FieldProblem(
                    f"{kind}.{name}.name",
                    "Must have lower-case letters, digits, `-` and `_`, and begin with a letter or digit.",
                )


def _site_problems(site: Site) -> Iterator[FieldProblem]:
    for network in site.networks:
        if message := network_problem(network):
            yield FieldProblem(f"sites.{site.name}.networks", message)


def _label_problems(kind: Kind, item: ModelProfile | Node) -> Iterator[FieldProblem]:
    for key, value in item.labels.items():
        if not _LABEL_KEY.fullmatch(key):
            yield FieldProblem(
                f"{kind}.{item.name}.labels.{key}", "A label has lower-case letters, digits and `_ . / -`."
            )
        if not _LABEL_VALUE.fullmatch(value) or value != value.strip():
            yield FieldProblem(
                f"{kind}.{item.name}.labels.{key}",
                "A label's value has at most 128 letters, digits, blanks inside and `_ . : / @ + -`.",
            )


def _parser_problems(model: ModelProfile) -> Iterator[FieldProblem]:
    for label, known in PARSERS.items():
        named = model.labels.get(label)
        if named and named not in known:
            path = f"{Kind.MODEL}.{model.name}.labels.{label}"
            yield FieldProblem(path, f"There is no parser {named} here; those known are {', '.join(known)}.")


def _node_problems(inventory: Inventory, sites: Mapping[str, Site]) -> Iterator[FieldProblem]:
    chips = {chip.name for chip in inventory.chips}
    models = {model.name for model in inventory.models}
    yield from _double_urls(Kind.NODE, inventory.nodes)
    for node in inventory.nodes:
        path = f"nodes.{node.name}"
        if node.engine not in ENGINES:
            yield FieldProblem(f"{path}.engine", f"Must be one of {', '.join(ENGINES)}.")
        if node.chip and node.chip not in chips:
            yield FieldProblem(f"{path}.chip", f"There is no chip {node.chip}.")
        if node.model not in models:
            yield FieldProblem(f"{path}.model", f"There is no model {node.model}.")
        yield from _label_problems(Kind.NODE, node)
        yield from _place_problems(path, node, sites)


def _gateway_problems(gateways: Iterable[Gateway], sites: Mapping[str, Site]) -> Iterator[FieldProblem]:
    gateways = tuple(gateways)
    yield from _double_urls(Kind.GATEWAY, gateways)
    for gateway in gateways:
        yield from _place_problems(f"gateways.{gateway.name}", gateway, sites)


def _place_problems(path: str, item: Node | Gateway, sites: Mapping[str, Site]) -> Iterator[FieldProblem]:
    site = sites.get(item.site)
    if site is None:
        yield FieldProblem(f"{path}.site", f"There is no site {item.site}.")
    elif message := url_problem(item.url, site.networks):
        yield FieldProblem(f"{path}.url", message)


def _double_urls(kind: Kind, items: Iterable[Node] | Iterable[Gateway]) -> Iterator[FieldProblem]:
    first: dict[str, str] = {}
    for item in items:
        other = first.setdefault(item.url.rstrip("/"), item.name)
        if other != item.name:
            yield FieldProblem(f"{kind}.{item.name}.url", f"The {kind.singular} {other} has the same.")


def _link_problems(inventory: Inventory, sites: Mapping[str, Site]) -> Iterator[FieldProblem]:
    first: dict[tuple[str, str], str] = {}
    for link in inventory.links:
        path = f"links.{link.name}"
        for end in ("source", "target"):
            if getattr(link, end) not in sites:
                yield FieldProblem(f"{path}.{end}", f"There is no site {getattr(link, end)}.")
        if link.source == link.target:
            yield FieldProblem(f"{path}.target", "Must be another site than the source.")
        other = first.setdefault((link.source, link.target), link.name)
        if other != link.name:
            yield FieldProblem(f"{path}.target", f"The link {other} joins the same sites.")
        if link.source in sites:
            yield from _relay_problems(path, link, sites[link.source])


def _relay_problems(path: str, link: Link, site: Site) -> Iterator[FieldProblem]:
    if bool(link.relay_host) != bool(link.relay_port):
        yield FieldProblem(f"{path}.relay_port", "A relay has a host and a port, or neither.")
    if link.relay_host and (message := host_problem(link.relay_host, site.networks)):
        yield FieldProblem(f"{path}.relay_host", message)
    if link.admin_url and (message := url_problem(link.admin_url, site.networks)):
        yield FieldProblem(f"{path}.admin_url", message)


def _default_model_problems(inventory: Inventory) -> Iterator[FieldProblem]:
    if inventory.model and inventory.model not in {model.name for model in inventory.models}:
        yield FieldProblem("model", f"There is no model {inventory.model}.")
