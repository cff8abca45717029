"""Asks every node and relay of a site at once, over kept connections; silence is an answer too."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import aiohttp
import msgspec

from control.telemetry.records import LinkSample, NodeSample
from engine_agents.observer.config import ObserverConfig, WatchedNode
from engine_agents.observer.samples import LinkInfo, NodeInfo, StockLoad, link_sample, node_sample

TIMEOUT_S = 0.8
NOT_FOUND = 404

T = TypeVar("T")


class Scraper:
    """One site's nodes and relays."""

    def __init__(
        self, session: aiohttp.ClientSession, site: str, config: ObserverConfig | Callable[[], ObserverConfig]
    ) -> None:
        self._session = session
        self._site = site
        self._configure = config if callable(config) else lambda: config

    async def scrape(self) -> tuple[tuple[NodeSample, ...], tuple[LinkSample, ...]]:
        """One sample of each node and each link that is watched now, within `TIMEOUT_S` whatever they do."""
        config = self._configure()
        relays = list(dict.fromkeys(link.admin_url for link in config.links))
        nodes = asyncio.gather(*(self._ask_node(node) for node in config.nodes))
        links = asyncio.gather(*(self._ask_relay(url) for url in relays))
        infos, answers = await asyncio.gather(nodes, links)
        by_relay = dict(zip(relays, answers, strict=True))
        return (
            tuple(node_sample(self._site, node, info) for node, info in zip(config.nodes, infos, strict=True)),
            tuple(link_sample(link, by_relay[link.admin_url]) for link in config.links),
        )

    async def _ask_node(self, node: WatchedNode) -> NodeInfo | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, info = await self._fetch(f"{node.url}/pdd/v1/node", NodeInfo)
                if status != NOT_FOUND:
                    return info
                _, load = await self._fetch(f"{node.url}/load", StockLoad)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        return None if load is None else NodeInfo(running=load.server_load)

    async def _ask_relay(self, admin_url: str) -> dict[str, LinkInfo] | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                _, links = await self._fetch(f"{admin_url}/links", list[LinkInfo])
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None
        return None if links is None else {link.name: link for link in links}

    async def _fetch(self, url: str, kind: type[T]) -> tuple[int, T | None]:
        """Status and, where it is 200, the decoded body.

        Raises:
            TimeoutError, aiohttp.ClientError, OSError: no answer.
            ValueError: the body is not of that kind.
        """
        async with self._session.get(url, allow_redirects=False) as response:
            body = await response.read()
            return response.status, msgspec.json.decode(body, type=kind) if response.ok else None
