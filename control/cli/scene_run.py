"""Plays a scene on a running fleet over its public API, remembers how to take it back, and takes it back."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from control.cli.errors import CommandError
from control.cli.fleet_client import FleetAddress, call_api, fetch_all, send_request
from control.cli.load import LoadOptions, LoadRun, fetch_model
from control.cli.operation_client import follow
from control.domain.demo_scenes import (
    FleetPicture,
    SceneError,
    ScenePlan,
    Storm,
    dead_url,
    plan_scene,
    values_before,
)
from control.domain.workload import Span, WorkloadShape

Say = Callable[[str], None]

FILE = "scene.json"
OPERATION_TIMEOUT_S = 90.0
_NODE_FIELDS = ("name", "site", "role", "url", "engine", "model", "slots", "state", "chip", "labels")


class Stage:
    """A scene on one fleet: each undo is written down before its change is made, so that `stop` finds it."""

    def __init__(self, fleet: FleetAddress, folder: Path, say: Say) -> None:
        self._fleet = fleet
        self._file = folder / FILE
        self._say = say

    def begin(self, name: str) -> ScenePlan:
        """Make every change of a scene.

        Raises:
            CommandError: another scene is on, or the fleet cannot play it; what was changed is taken back.
        """
        if self._file.exists():
            raise CommandError(f"The scene {self._read()['scene']} is on: end it with pdd scene stop")
        try:
            plan = plan_scene(name, self._picture())
        except SceneError as error:
            raise CommandError(str(error)) from error
        self._write({"scene": name, "undo": []})
        try:
            self._change(name, plan)
        except BaseException:
            self.end()
            raise
        return plan

    def end(self) -> str:
        """Take everything back, last change first; the name of the scene that was on, empty where none was."""
        if not self._file.exists():
            return ""
        state = self._read()
        while state["undo"]:
            self._undo(state["undo"][-1])
            state["undo"].pop()
            self._write(state)
        self._file.unlink()
        return str(state["scene"])

    def _change(self, name: str, plan: ScenePlan) -> None:
        fleet = self._fleet
        demo = call_api(fleet, "GET", "/demo-traffic")
        if not demo["running"]:
            self._remember({"kind": "demo", "running": False})
            call_api(fleet, "PUT", "/demo-traffic", {"running": True})
        self._remember({"kind": "rule", "name": plan.rule["name"]})
        call_api(fleet, "POST", "/alert-rules", dict(plan.rule))
        if plan.policy:
            active = call_api(fleet, "GET", "/policies/active")
            held, absent = values_before(active["document"], list(plan.policy))
            self._remember({"kind": "policy", "changes": held, "remove": absent})
            self._set_policy(dict(plan.policy), [], f"Scene {name}")
        if plan.drain:
            self._remember({"kind": "undrain", "node": plan.drain})
            self._operate({"kind": "drain", "node": plan.drain, "force": True, "timeout_s": 60.0}, f"Scene {name}")
        if plan.kill:
            node = send_request(fleet, "GET", f"/nodes/{plan.kill}").json()
            self._remember({"kind": "node", "name": plan.kill, "url": node["url"]})
            self._set_url(plan.kill, dead_url(node["url"]), f"Scene {name}")

    def _undo(self, step: dict[str, Any]) -> None:
        reason = "Scene over"
        if step["kind"] == "demo":
            call_api(self._fleet, "PUT", "/demo-traffic", {"running": step["running"]})
        elif step["kind"] == "rule":
            with suppress(CommandError):  # nobody has to have left it there
                tag = send_request(self._fleet, "GET", f"/alert-rules/{step['name']}").headers["etag"]
                send_request(self._fleet, "DELETE", f"/alert-rules/{step['name']}", headers={"If-Match": tag})
        elif step["kind"] == "policy":
            self._set_policy(step["changes"], step["remove"], reason)
        elif step["kind"] == "undrain":
            self._operate({"kind": "undrain", "node": step["node"]}, reason)
        elif step["kind"] == "node":
            self._set_url(step["name"], step["url"], reason)

    def _set_policy(self, changes: dict[str, Any], remove: list[str], reason: str) -> None:
        """Change the active policy; one that says so already is left alone."""
        active = call_api(self._fleet, "GET", "/policies/active")
        held, absent = values_before(active["document"], [*changes, *remove])
        wanted = {path: value for path, value in changes.items() if path in absent or held[path] != value}
        gone = [path for path in remove if path in held]
        if wanted or gone:
            body = {"reason": reason, "base_revision": active["revision"], "apply": True}
            call_api(self._fleet, "POST", "/policies/revisions", {**body, "changes": wanted, "remove": gone})

    def _set_url(self, name: str, url: str, reason: str) -> None:
        found = send_request(self._fleet, "GET", f"/nodes/{name}")
        node = {field: found.json()[field] for field in _NODE_FIELDS}
        headers = {"If-Match": found.headers["etag"]}
        body = {**node, "url": url}
        send_request(self._fleet, "PUT", f"/nodes/{name}", params={"reason": reason}, json=body, headers=headers)

    def _operate(self, body: dict[str, Any], reason: str) -> None:
        opened = call_api(self._fleet, "POST", "/operations", {**body, "reason": reason})
        ended = follow(self._fleet, opened, self._say, timeout_s=OPERATION_TIMEOUT_S)
        if ended["state"] != "done":
            raise CommandError(f"operation {ended['id']} {ended['kind']} is {ended['state']}: {ended['error']}")

    def _picture(self) -> FleetPicture:
        nodes, links = fetch_all(self._fleet, "/nodes"), fetch_all(self._fleet, "/links")
        return FleetPicture(nodes, links, call_api(self._fleet, "GET", "/policies/active")["document"])

    def _remember(self, undo: dict[str, Any]) -> None:
        state = self._read()
        state["undo"].append(undo)
        self._write(state)

    def _read(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._file.read_text())
        return state

    def _write(self, state: dict[str, Any]) -> None:
        beside = self._file.with_suffix(".tmp")
        beside.write_text(json.dumps(state))
        beside.replace(self._file)


def stay(fleet: FleetAddress, plan: ScenePlan, duration_s: float) -> None:
    """Let a scene go on for a while, with its own requests where it sends any."""
    if plan.storm is None:
        time.sleep(duration_s)
    else:
        asyncio.run(_storm(fleet, plan.storm, duration_s))


async def _storm(fleet: FleetAddress, storm: Storm, duration_s: float) -> None:
    base_url = f"{fleet.gateway_url}/v1"
    headers = {"X-PDD-Traffic": "demo"}
    options = LoadOptions(
        base_url=base_url,
        model=await fetch_model(base_url, headers),
        seed=time.time_ns(),
        sessions=storm.sessions,
        duration_s=duration_s,
        shape=WorkloadShape(cold_share=1.0, cold_tokens=Span(350, 600), turns=Span(1, 1), think_s=Span(0.2, 1.0)),
        headers=headers,
    )
    await LoadRun(options, lambda _: None).run()
