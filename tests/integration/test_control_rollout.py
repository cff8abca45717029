"""A policy travels from SQL through Valkey and Celery to a gateway, and comes back as a report."""

import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlmodel import select

from control.api.app import open_plane
from control.domain.inventory import ItemRef, Kind, Wish
from control.domain.topology import FleetSnapshot, Gateway, Link, Site
from control.services.access import Principal, Role
from control.services.bootstrap import prepare
from control.services.inventory import Terms, item_version, replace_item
from control.services.inventory_lists import load_item
from control.services.policies import RevisionDraft, apply_revision, create_revision, load_active
from control.services.rollout import RolloutState, load_statuses
from control.settings import Settings
from control.store.tables import LinkReportRow
from tests.processes import running_process, running_valkey, running_worker, session_members, wait_until
from tests.services import free_port

RELAY = "routing.relay_when_transfer_exceeds_s"
OPERATOR = Principal("olga", Role.OPERATOR)
SECRET = "a site's secret"


class Rig:
    """Valkey, both workers and a gateway, all real; the gateway can be stopped and started."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.relay_port = free_port()
        self.relay_url = f"http://127.0.0.1:{self.relay_port}"
        self.environment = {
            "PDD_DATA_DIR": str(folder),
            "PDD_REDIS_URL": redis_url,
            "PDD_DATABASE_URL": f"sqlite:///{folder / 'control.sqlite3'}",
            "PDD_SITE_SECRET": SECRET,
        }
        settings = Settings.from_environment(self.environment)
        fleet = FleetSnapshot(
            sites=(Site("ams"), Site("fra")),
            links=(Link("ams-fra", "ams", "fra", 5e6, 0.03, 1.5e6, "127.0.0.1", 1, self.relay_url),),
            gateways=(Gateway("ams-gw-01", "ams", self.url),),
            model="m",
            kv_bytes_per_token=1,
        )
        prepare(settings, fleet.to_document())
        self.plane = open_plane(settings)
        self.gateway = ExitStack()

    def start_gateway(self) -> None:
        argv = [sys.executable, "-m", "engine_agents.gateway", "--port", str(self.port), "--site", "ams"]
        log = self.gateway.enter_context((self.folder / "gateway.log").open("ab"))
        self.gateway.enter_context(running_process([*argv, "--name", "ams-gw-01"], log, self.environment))

    def start_relay(self) -> None:
        config = self.folder / "links.json"
        link = {"name": "ams-fra", "source": "ams", "target": "fra", "capacity_bytes_per_s": 5e6, "rtt_s": 0.03}
        config.write_text(json.dumps({"links": [link]}))
        argv = [sys.executable, "-m", "engine_agents.wan", "--port", "0", "--admin-port", str(self.relay_port)]
        log = self.gateway.enter_context((self.folder / "relay.log").open("ab"))
        self.gateway.enter_context(running_process([*argv, "--config", str(config)], log, self.environment))

    def link(self) -> dict:
        """What the relay says of the link; empty while it does not answer."""
        try:
            return httpx.get(f"{self.relay_url}/links", trust_env=False).json()[0]
        except httpx.TransportError:
            return {}

    def link_report(self) -> LinkReportRow | None:
        with self.plane.database.reading() as session:
            return session.exec(select(LinkReportRow)).first()

    def change(self, changes: dict) -> int:
        draft = RevisionDraft("test", self.active(), changes=changes, apply=True)
        return create_revision(self.plane, OPERATOR, draft).number

    def stop_gateway(self) -> None:
        self.gateway.close()

    def admin(self, method: str, **arguments) -> httpx.Response:
        headers = {"Authorization": f"Bearer {SECRET}"}
        return httpx.request(method, f"{self.url}/admin/v1/config", headers=headers, trust_env=False, **arguments)

    def running_revision(self) -> int | None:
        try:
            return self.admin("GET").json()["revision"]
        except httpx.TransportError:
            return None

    def active(self) -> int:
        with self.plane.database.reading() as session:
            return load_active(session).revision.number

    def status(self):
        with self.plane.database.reading() as session:
            [status] = load_statuses(session, load_active(session).revision.number, self.plane.now())
        return status

    def is_rolled_out(self) -> bool:
        return self.running_revision() == self.active() and self.status().state is RolloutState.APPLIED

    def change_threshold(self, value: float) -> int:
        draft = RevisionDraft("test", self.active(), changes={RELAY: value}, apply=True)
        return create_revision(self.plane, OPERATOR, draft).number


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rollout")
    with ExitStack() as stack:
        rig = Rig(folder, stack.enter_context(running_valkey(folder)))
        stack.callback(rig.plane.database.engine.dispose)
        stack.callback(rig.stop_gateway)
        stack.enter_context(running_worker("control.worker", "control", folder / "control.log", rig.environment, "-B"))
        stack.enter_context(running_worker("engine_agents.tasks", "site.ams", folder / "agent.log", rig.environment))
        rig.start_gateway()
        yield rig
        for log in ("control.log", "agent.log", "gateway.log"):
            sys.stdout.write(f"--- {log}\n{(folder / log).read_text()}")


def test_a_new_gateway_gets_the_active_policy_without_being_asked_for(rig):
    wait_until(rig.is_rolled_out)
    assert rig.status().revision == rig.active() == 1


def test_an_applied_revision_runs_on_the_gateway_and_is_reported(rig):
    wait_until(rig.is_rolled_out)
    number = rig.change_threshold(0.7)
    wait_until(rig.is_rolled_out)
    assert rig.running_revision() == number
    stored = (rig.folder / "gateway" / "config.json").read_text()
    assert '"relay_when_transfer_exceeds_s":0.7' in stored.replace(" ", "")


def test_a_links_policy_reaches_its_relay_and_is_reported(rig):
    rig.start_relay()
    wait_until(lambda: rig.link().get("policy_revision") == rig.active())
    assert rig.link()["flow_cap_bytes_per_s"] == 1.5e6
    changes = {"link.ams-fra.rate_cap_bytes_per_s": 1e6, "link.ams-fra.max_transfers": 2}
    number = rig.change(changes)
    wait_until(lambda: rig.link().get("policy_revision") == number)
    assert (rig.link()["rate_cap_bytes_per_s"], rig.link()["max_transfers"]) == (1e6, 2)
    wait_until(lambda: rig.link_report() is not None and rig.link_report().revision == number)
    assert (rig.link_report().state, rig.link_report().error) == ("applied", "")


def test_a_link_whose_capacity_and_round_trip_are_edited_is_reshaped_while_it_runs(rig):
    if not rig.link():
        rig.start_relay()
    wait_until(lambda: rig.link().get("policy_revision") == rig.active())
    with rig.plane.database.reading() as session:
        link = load_item(session, ItemRef(Kind.LINK, "ams-fra"))
    edited = replace(link, capacity_bytes_per_s=2.5e6, rtt_s=0.08)
    replace_item(rig.plane, OPERATOR, Wish(edited), Terms("test", item_version(link)))
    wait_until(lambda: rig.link().get("capacity_bytes_per_s") == 2.5e6)
    assert rig.link()["rtt_s"] == 0.08


def test_going_back_runs_the_old_document_under_a_new_number(rig):
    wait_until(rig.is_rolled_out)
    before = rig.active()
    rig.change_threshold(0.9)
    back = apply_revision(rig.plane, OPERATOR, before, "worse").revision.number
    assert back == before + 2
    wait_until(rig.is_rolled_out)
    assert rig.running_revision() == back


def test_a_gateway_that_was_away_and_forgot_all_catches_up(rig):
    wait_until(rig.is_rolled_out)
    rig.stop_gateway()
    shutil.rmtree(rig.folder / "gateway")
    number = rig.change_threshold(1.1)
    wait_until(lambda: rig.status().state is RolloutState.FAILED)
    assert rig.status().revision is None
    assert "ConnectError" in rig.status().error
    rig.start_gateway()
    wait_until(rig.is_rolled_out)
    assert rig.running_revision() == number


def test_a_gateway_with_a_number_of_another_database_is_overruled(rig):
    wait_until(rig.is_rolled_out)
    with rig.plane.database.reading() as session:
        document = load_active(session).revision.document
    fleet = FleetSnapshot(model="m", kv_bytes_per_token=1).to_document()
    foreign = {"revision": 900, "policy": document, "fleet": fleet}
    assert rig.admin("PUT", json=foreign).status_code == 200
    rig.change_threshold(1.3)
    wait_until(rig.is_rolled_out)
    assert rig.running_revision() == rig.active() < 900


@pytest.mark.parametrize(
    ("module", "queue", "processes"), [("control.worker", "control", 3), ("engine_agents.tasks", "site.none", 2)]
)
def test_no_child_of_a_killed_worker_lives_on(rig, tmp_path, module, queue, processes):
    log = tmp_path / "worker.log"
    options = ["-B"] if module == "control.worker" else []
    with running_worker(module, queue, log, rig.environment, *options) as worker:
        wait_until(lambda: len(session_members(worker.pid)) == processes and b" ready." in log.read_bytes())
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: session_members(worker.pid) == [])
