from pathlib import Path

import pytest

from control.cli.data_folder import Secrets
from control.cli.fleet_plan import Engine, FleetOptions, emulated_document, links_document, plan_fleet, port_names
from control.cli.fleet_processes import (
    Commands,
    control_processes,
    demo_process,
    node_processes,
    site_processes,
    store_process,
)
from control.domain.prefill import ChunkRule, chunked_prefill_s, plan_chunks
from control.domain.topology import FleetSnapshot, Role

SECRETS = Secrets("site-secret-value", "session-secret-value", "redis-password-value", "operator-token-value")
COMMANDS = Commands("/python", "/valkey-server")


def planned(engine, **more):
    options = FleetOptions(Path("/data"), engine, **more)
    ports = {name: 9000 + index for index, name in enumerate(port_names(engine))}
    fleet = plan_fleet(options, ports)
    processes = [
        store_process(options, COMMANDS),
        *node_processes(options, fleet, COMMANDS, SECRETS, ports),
        *site_processes(options, fleet, COMMANDS, SECRETS, ports),
        *control_processes(options, COMMANDS, SECRETS, ports),
        demo_process(options, COMMANDS, SECRETS, ports),
    ]
    return fleet, processes


@pytest.mark.parametrize("engine", list(Engine))
def test_a_fleet_has_each_role_and_a_link_between_its_sites(engine):
    fleet, _ = planned(engine)
    assert [fleet.nodes_of(role)[0].site for role in Role] == ["ams", "ams", "fra"]
    link = fleet.link_between("ams", "fra")
    assert link is not None
    assert (link.capacity_bytes_per_s, link.flow_cap_bytes_per_s, link.rtt_s) == (5_000_000, 1_500_000, 0.03)
    assert FleetSnapshot.from_document(fleet.to_document()) == fleet


@pytest.mark.parametrize("engine", list(Engine))
def test_no_two_processes_share_a_name_and_each_need_exists(engine):
    _, processes = planned(engine)
    names = [process.name for process in processes]
    assert len(set(names)) == len(names)
    assert all(need in names for process in processes for need in process.needs)


@pytest.mark.parametrize("engine", list(Engine))
def test_no_secret_stands_on_a_command_line(engine):
    _, processes = planned(engine)
    for process in processes:
        assert not any("-value" in argument for argument in process.argv)


@pytest.mark.parametrize("engine", list(Engine))
def test_processes_at_the_sites_never_learn_of_sql_or_sessions(engine):
    _, processes = planned(engine)
    told = {process.name for process in processes if "PDD_DATABASE_URL" in process.environment}
    assert told == {"web", "worker", "telemetry"}
    assert {process.name for process in processes if "PDD_SESSION_SECRET" in process.environment} == told


@pytest.mark.parametrize("engine", list(Engine))
def test_no_process_learns_the_operator_token(engine):
    _, processes = planned(engine)
    assert not any("operator-token-value" in process.environment.values() for process in processes)


def test_llama_nodes_are_three_processes_and_emulated_ones_share_one():
    llama, emulated = planned(Engine.LLAMA), planned(Engine.EMULATED)
    assert len(llama[1]) == len(emulated[1]) + 2
    assert len({node.url for node in emulated[0].nodes}) == 3


def test_the_store_stops_last_and_the_demo_first():
    _, processes = planned(Engine.EMULATED)
    by_wave = sorted(processes, key=lambda process: process.stop_wave)
    assert by_wave[0].name == "valkey"
    assert by_wave[-1].name == "demo"


def test_the_wan_relay_is_told_the_links_shape():
    fleet, _ = planned(Engine.EMULATED)
    assert links_document(fleet)["links"] == [
        {
            "name": "ams-fra",
            "source": "ams",
            "target": "fra",
            "capacity_bytes_per_s": 5_000_000.0,
            "flow_cap_bytes_per_s": 1_500_000.0,
            "rtt_s": 0.03,
        }
    ]


def test_emulated_nodes_get_their_kv_ports_and_the_fleets_kv_size():
    fleet, _ = planned(Engine.EMULATED)
    document = emulated_document(fleet, {f"{node.name}.kv": 9100 + index for index, node in enumerate(fleet.nodes)})
    assert [node["kv_port"] for node in document["nodes"]] == [9100, 9101, 9102]
    assert {node["chip"]["kv_bytes_per_token"] for node in document["nodes"]} == {fleet.kv_bytes_per_token}


def test_a_small_last_chunk_costs_the_demos_chips_less_when_it_is_joined():
    fleet, _ = planned(Engine.EMULATED)
    document = emulated_document(fleet, {f"{node.name}.kv": 0 for node in fleet.nodes})
    chip = document["nodes"][0]["chip"]
    joined = ChunkRule(chip["prefill_chunk_tokens"], chip["tail_chunk_min_tokens"])
    costs = [
        chunked_prefill_s(0, plan_chunks(0, 256 + 20, rule), chip["prefill_tokens_per_s"], chip["prefill_floor_s"])
        for rule in (joined, ChunkRule(joined.chunk_tokens))
    ]
    assert costs[0] < 0.95 * costs[1]
