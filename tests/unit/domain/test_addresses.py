import pytest

from control.domain.addresses import host_problem, network_problem, url_problem

NETWORKS = ("10.1.0.0/16", "fd00::/8")


@pytest.mark.parametrize(
    "url",
    [
        "http://10.1.0.7:8000",
        "https://10.1.255.255/nodes/x",
        "http://[fd00::1]:8000/",
        "http://[::ffff:10.1.0.7]:80",
        "http://10.1.0.7",
    ],
)
def test_an_address_inside_the_networks_may_be_named(url):
    assert url_problem(url, NETWORKS) == ""


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://10.2.0.7:8000", "outside the networks"),
        ("http://127.0.0.1:8000", "outside the networks"),
        ("http://[::ffff:127.0.0.1]:80", "outside the networks"),
        ("http://localhost:8000", "names are refused"),
        ("http://metadata.internal/", "names are refused"),
        ("http://167772167:80", "names are refused"),
        ("http://0x0a010007:80", "names are refused"),
        ("http://10.1.7:80", "names are refused"),
        ("ftp://10.1.0.7", "such as"),
        ("file:///etc/passwd", "such as"),
        ("10.1.0.7:8000", "such as"),
        ("", "such as"),
        ("http://", "such as"),
        ("http://10.1.0.7:99999", "such as"),
        ("http://10.1.0.7:0", "port"),
        ("http://[fd00::1", "such as"),
        ("http://user@10.1.0.7", "no user"),
        ("http://10.1.0.7@evil:80", "no user"),
        ("http://10.1.0.7?x=1", "no user"),
        ("http://10.1.0.7/#x", "no user"),
        ("http://10.1.0.7\n.evil/", "blanks"),
        ("http://10.1.0.7 /", "blanks"),
    ],
)
def test_anything_else_is_refused_with_its_reason(url, why):
    assert why in url_problem(url, NETWORKS)


@pytest.mark.parametrize("host", ["169.254.169.254", "0.0.0.0", "0.1.2.3", "224.0.0.1", "::", "fe80::1", "ff02::1"])
def test_some_addresses_no_site_may_name(host):
    assert "no site may name" in host_problem(host, ("0.0.0.0/0", "::/0"))


def test_a_site_without_networks_allows_no_address():
    assert "(none)" in host_problem("10.1.0.7", ())


@pytest.mark.parametrize("text", ["10.1.0.0/16", "fd00::/8", "10.1.0.7", "10.1.0.7/32"])
def test_a_network_is_written_in_cidr(text):
    assert network_problem(text) == ""


@pytest.mark.parametrize("text", ["", "10.1.0.7/16", "10.1.0.0/33", "here", "10.1.0.0-10.1.0.9"])
def test_what_is_no_network_is_refused(text):
    assert "CIDR" in network_problem(text)
