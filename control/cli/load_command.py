"""Runs `pdd load`: once with a report, or as the demo traffic of an embedded fleet."""

import asyncio
import dataclasses
import time
from typing import Any

import aiohttp

from control.cli.errors import CommandError
from control.cli.load import LoadOptions, LoadRun, fetch_model
from control.cli.load_report import Objectives, summarise
from control.cli.stream_client import TimedAnswer
from control.domain.workload import WorkloadShape
from control.settings import Settings

__all__ = ["LoadOptions", "WorkloadShape", "run_demo", "run_load"]

_SWITCH_POLL_S = 1.5
DEMO_OUTLIER_SHARE = 0.04  # of the sessions; each is one request
_RETRY_S = 2.0


async def run_load(options: LoadOptions, objectives: Objectives) -> dict[str, Any]:
    """Send and report.

    Raises:
        CommandError: the endpoint does not answer or lists no model.
    """
    options = dataclasses.replace(options, model=options.model or await _model(options))
    answers: list[TimedAnswer] = []
    began_s = time.monotonic()
    await LoadRun(options, answers.append).run()
    return summarise(answers, time.monotonic() - began_s, objectives)


async def run_demo(options: LoadOptions) -> None:
    """Send without end, while the page says so; survives a gateway or control plane that is away."""
    settings = Settings.from_environment()
    token = (settings.data_dir / "operator-token").read_text().strip()
    wanted = asyncio.Event()
    wanted.set()
    options = dataclasses.replace(
        options,
        headers={**options.headers, "X-PDD-Traffic": "demo"},
        shape=dataclasses.replace(options.shape, outlier_share=DEMO_OUTLIER_SHARE),
    )
    while not options.model:
        try:
            options = dataclasses.replace(options, model=await _model(options))
        except CommandError as error:
            print(error, flush=True)
            await asyncio.sleep(_RETRY_S)
    async with asyncio.TaskGroup() as group:
        group.create_task(_follow_switch(f"{settings.control_url}/api/v1/demo-traffic", token, wanted))
        group.create_task(LoadRun(options, _tell_failure, _gate(wanted)).run())


def _gate(wanted: asyncio.Event) -> Any:
    async def hold() -> None:
        await wanted.wait()

    return hold


def _tell_failure(answer: TimedAnswer) -> None:
    if not answer.is_complete:
        print(f"a request failed: {answer.error}", flush=True)


async def _follow_switch(url: str, token: str, wanted: asyncio.Event) -> None:
    """Keep to the last known state while the control plane is away."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
        while True:
            try:
                async with http.get(url, headers=headers) as response:
                    response.raise_for_status()
                    running = bool((await response.json())["running"])
            except (aiohttp.ClientError, TimeoutError, OSError, KeyError) as error:
                print(f"cannot read the demo switch: {type(error).__name__}", flush=True)
            else:
                (wanted.set if running else wanted.clear)()
            await asyncio.sleep(_SWITCH_POLL_S)


async def _model(options: LoadOptions) -> str:
    try:
        return await fetch_model(options.base_url, options.headers)
    except (aiohttp.ClientError, TimeoutError, OSError, KeyError, IndexError) as error:
        raise CommandError(f"{options.base_url} lists no model: {type(error).__name__}: {error}") from error
