"""What a shell is offered while `pdd …` is typed: commands, fixed words, and names from a fleet that answers."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from control.cli.data_folder import DataFolder, Running


def offered(words, position, data):
    """What bash would be offered for the word at this position."""
    asked = {"_PDD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    environment = os.environ | asked | {"PDD_DATA_DIR": str(data)}
    argv = [sys.executable, "-m", "control.cli.main"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.split()


@pytest.fixture
def fleet(tmp_path):
    """The data folder of a fleet whose API knows two nodes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"items": [{"name": "ams-p-01"}, {"name": "fra-md-01"}], "next_cursor": null}'
            self.send_response(200 if self.path.startswith("/api/v1/nodes") else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    folder = DataFolder(tmp_path)
    folder.secrets()
    folder.announce(Running(os.getpid(), f"http://127.0.0.1:{server.server_port}", "http://127.0.0.1:1"))
    yield tmp_path
    server.shutdown()
    thread.join()
    server.server_close()


def test_commands_roles_and_the_names_of_nodes_are_offered(fleet):
    assert offered("pdd node dr", 2, fleet) == ["drain"]
    assert offered("pdd node switch ams-p-01 re", 4, fleet) == ["relay"]
    assert offered("pdd node drain ", 3, fleet) == ["ams-p-01", "fra-md-01"]
    assert offered("pdd fleet show nodes fra", 4, fleet) == ["fra-md-01"]


def test_where_no_fleet_answers_no_name_is_offered(tmp_path):
    assert offered("pdd node drain ", 3, tmp_path) == []
