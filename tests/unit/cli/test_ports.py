import socket

import pytest

from control.cli.ports import choose_ports, is_free


@pytest.fixture
def taken_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_somebody_listens_on_is_not_free(taken_port):
    assert not is_free(taken_port)


def test_a_port_nobody_listens_on_is_free(taken_port):
    assert is_free(choose_ports(["one"], {}, [taken_port])["one"])


def test_remembered_ports_are_kept_while_they_are_free(taken_port):
    free = choose_ports(["a"], {})["a"]
    chosen = choose_ports(["a", "b"], {"a": free, "b": taken_port})
    assert chosen["a"] == free
    assert chosen["b"] != taken_port


def test_no_port_is_chosen_twice_nor_one_that_must_be_avoided():
    first = choose_ports(["a"], {})["a"]
    chosen = choose_ports(["a", "b", "c"], {"a": first, "b": first}, taken=[first])
    assert first not in chosen.values()
    assert len(set(chosen.values())) == 3
