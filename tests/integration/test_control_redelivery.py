"""An order whose worker is killed is carried out by the next one."""

import os
import signal
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from control.celery_app import create_celery, send_order
from control.domain.topology import FleetSnapshot, Gateway
from control.services.rollout import push_orders
from control.settings import Settings
from tests.processes import running_valkey, running_worker, wait_until

pytestmark = [pytest.mark.full, pytest.mark.faults]


@contextmanager
def hanging_gateway():
    """Accepts a configuration and never answers; gives its URL and the list of accepted requests."""
    accepted, over = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            accepted.append(self.path)
            over.wait()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", accepted
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_order_of_a_killed_worker_is_carried_out_by_the_next_one(tmp_path):
    with running_valkey(tmp_path) as redis_url, hanging_gateway() as (url, accepted):
        environment = {"PDD_REDIS_URL": redis_url, "PDD_DATA_DIR": str(tmp_path), "PDD_SITE_SECRET": "s"}
        app = create_celery(Settings.from_environment(environment), "test")
        [order] = push_orders(FleetSnapshot(), [Gateway("gw", "ams", url)], 1, {})
        log = tmp_path / "agent.log"
        with running_worker("engine_agents.tasks", "site.ams", log, environment) as worker:
            assert send_order(app, order)
            wait_until(lambda: accepted == ["/admin/v1/config"])
            os.kill(worker.pid, signal.SIGKILL)
        with running_worker("engine_agents.tasks", "site.ams", log, environment):
            wait_until(lambda: len(accepted) == 2)
        app.close()
