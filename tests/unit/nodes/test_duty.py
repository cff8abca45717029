"""Orders to a node: fenced, kept, and with one effect however often they come."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.topology import Node, Role
from engine_agents.drivers import driver_of
from engine_agents.drivers.driver import DriverError, Effect, Fence, StaleOrderError, UnreachableError, UnsupportedError
from engine_agents.nodes.duty import Duty
from engine_agents.nodes.duty import Fence as NodeFence
from engine_agents.nodes.duty import StaleOrderError as NodeStaleOrderError
from tests.fleet import MODEL, SECRET, emulated_fleet, emulated_process

orders = st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["prefill", "relay", "main"])), max_size=30)


@given(orders)
def test_the_newest_order_wins_in_whatever_sequence_they_come(sequence):
    duty = Duty("n")
    newest, role = 0, None
    for token, wanted in sequence:
        fence = NodeFence(f"s{token}", token)
        if token < newest:
            with pytest.raises(NodeStaleOrderError):
                duty.assign(wanted, fence, draining=False)
            assert duty.role == role
            continue
        assert duty.assign(wanted, fence, draining=False) == ("unchanged" if wanted == role else "applied")
        newest, role = token, wanted
    assert [order["fence"] for order in duty.orders()] == [token for token, _ in sequence]


def test_an_order_to_end_is_obeyed_once_and_by_the_incarnation_that_is_meant():
    duty = Duty("n")
    assert duty.end(NodeFence("1.3", 5), is_this_incarnation=False) == "unchanged"
    assert duty.end(NodeFence("1.3", 6), is_this_incarnation=True) == "applied"
    assert duty.end(NodeFence("1.3", 6), is_this_incarnation=True) == "unchanged"
    with pytest.raises(NodeStaleOrderError):
        duty.end(NodeFence("1.2", 4), is_this_incarnation=True)


def domain_node(url, engine="emulated"):
    return Node("a", "ams", Role.PREFILL, url, engine, MODEL)


def client_of(url, secret=SECRET):
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False, timeout=20)


async def test_a_driver_looks_tells_warms_and_restarts_a_node_of_ours(tmp_path):
    async with emulated_process(["a"], tmp_path) as host:
        url = host.urls["a"]
        with client_of(url) as client:
            driver = driver_of(domain_node(url), client)
            seen = driver.observe()
            assert (seen.running, seen.waiting, seen.pulling, seen.leases) == (0, 0, 0, 0)
            assert driver.assign(Role.RELAY, Fence("1.4", 10), draining=False) is Effect.APPLIED
            assert driver.assign(Role.RELAY, Fence("1.4", 11), draining=False) is Effect.UNCHANGED
            with pytest.raises(StaleOrderError, match="order 9 is older than 11"):
                driver.assign(Role.MAIN, Fence("1.4", 9), draining=False)
            assert client.get("pdd/v1/node").json()["duty"] == {"role": "relay", "draining": False}
            assert driver.warm() > 0
            assert driver.restart("another incarnation", Fence("1.5", 12)) is Effect.UNCHANGED
            assert driver.restart(seen.incarnation, Fence("1.5", 13)) is Effect.APPLIED
        assert await host.process.wait() == 0
        with client_of(url) as client, pytest.raises(UnreachableError):
            driver_of(domain_node(url), client).observe()


async def test_a_node_that_shares_its_process_is_not_restarted(tmp_path):
    async with emulated_process(["a", "b"], tmp_path) as host:
        with client_of(host.urls["a"]) as client:
            driver = driver_of(domain_node(host.urls["a"]), client)
            with pytest.raises(UnsupportedError, match="hosts other nodes"):
                driver.restart(driver.observe().incarnation, Fence("1.3", 1))


async def test_orders_need_the_sites_secret_and_a_fence():
    async with emulated_fleet("a") as fleet:
        node = fleet["a"]
        assert (await node.http.put(f"{node.url}/pdd/v1/duty", json={"role": "main"})).status_code == 401
        headers = {"Authorization": f"Bearer {SECRET}"}
        unfenced = await node.http.put(f"{node.url}/pdd/v1/duty", json={"role": "main"}, headers=headers)
        assert unfenced.status_code == 400
        fenced = {**headers, "PDD-Step": "1.1", "PDD-Fencing-Token": "3"}
        odd = await node.http.put(f"{node.url}/pdd/v1/duty", json={"role": "cook"}, headers=fenced)
        assert odd.status_code == 400
        taken = await node.http.put(f"{node.url}/pdd/v1/duty", json={"role": "main"}, headers=fenced)
        assert taken.json() == {"effect": "applied"}
        assert (await node.get("/pdd/v1/orders")).json()["orders"] == [
            {"order": "assign", "step": "1.1", "fence": 3, "effect": "applied"}
        ]


def stock(handler):
    client = httpx.Client(base_url="http://stock", transport=httpx.MockTransport(handler))
    return driver_of(domain_node("http://stock", "vllm"), client)


def test_a_stock_engine_is_driven_by_what_it_offers_and_refuses_the_rest():
    def handler(request):
        match request.url.path:
            case "/load":
                return httpx.Response(200, json={"server_load": 3})
            case "/v1/completions":
                return httpx.Response(200, json={"choices": []})
        return httpx.Response(404)

    driver = stock(handler)
    assert driver.observe().to_document() == {
        "running": 3,
        "waiting": None,
        "pulling": None,
        "leases": None,
        "incarnation": None,
    }
    assert driver.assign(Role.MAIN, Fence("1.1", 1), draining=True) is Effect.UNCHANGED
    assert driver.warm() >= 0
    with pytest.raises(UnsupportedError, match="restart it where it runs"):
        driver.restart(None, Fence("1.1", 1))


@pytest.mark.parametrize("reply", [httpx.Response(500), httpx.Response(200, json={}), httpx.Response(200, text="hm")])
def test_an_engine_that_answers_nonsense_is_an_error_of_the_driver(reply):
    with pytest.raises(DriverError):
        stock(lambda _: reply).observe()
