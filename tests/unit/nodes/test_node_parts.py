"""Admission, progress, request checks and errors: small parts with sharp edges."""

import asyncio

import pytest

from engine_agents.nodes.admission import Admission, QueueFullError
from engine_agents.nodes.errors import RequestError, error_reply
from engine_agents.nodes.kv_errors import (
    ChecksumMismatchError,
    FingerprintMismatchError,
    LeaseUnknownError,
    PeerLostError,
    StoreFullError,
)
from engine_agents.nodes.progress import Progress
from engine_agents.nodes.responses import ClientClosedError, until_disconnect
from engine_agents.nodes.schemas import KvTransferParams, Via, decode_completion, pull_source


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_slots_are_given_in_the_order_of_asking():
    admission, order, gate = Admission(1, 10, Progress()), [], asyncio.Event()

    async def work(number: int) -> None:
        with admission.place():
            async with admission.slot():
                order.append(number)
                await gate.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (admission.running, admission.waiting, admission.admitted) == (1, 3, 4)
    tasks[1].cancel()
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 2, 3]
    assert (admission.running, admission.waiting, admission.admitted) == (0, 0, 0)


async def test_a_full_house_refuses_at_once():
    admission = Admission(1, 1, Progress())
    with admission.place(), admission.place(), pytest.raises(QueueFullError), admission.place():
        pass
    assert admission.admitted == 0


def test_only_work_that_stands_still_is_a_stall():
    clock = Clock()
    progress = Progress(20.0, clock)
    clock.now_s = 1000.0
    assert not progress.is_stalled()
    progress.begin()
    clock.now_s = 1019.0
    assert not progress.is_stalled()
    progress.mark()
    clock.now_s = 1039.1
    assert progress.is_stalled()
    progress.end()
    assert not progress.is_stalled()
    clock.now_s = 2000.0
    progress.begin()
    assert not progress.is_stalled()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("x"), 400, None),
        (RequestError("x", status=404, code="model_not_found"), 404, "model_not_found"),
        (FingerprintMismatchError("x"), 409, "fingerprint_mismatch"),
        (LeaseUnknownError("x"), 410, "lease_gone"),
        (PeerLostError("x"), 502, "pull_failed"),
        (ChecksumMismatchError("x"), 502, "pull_failed"),
        (StoreFullError("x"), 503, "store_full"),
        (QueueFullError("x"), 503, "queue_full"),
        (KeyError("secret inside"), 500, "internal_error"),
    ],
)
def test_each_error_has_its_status(error, status, code):
    reply = error_reply(error)
    assert (reply.status, reply.code) == (status, code)
    assert "secret" not in reply.message
    assert (reply.retry_after_s is not None) == (status == 503)


def test_null_fields_take_the_defaults():
    request = decode_completion(
        b'{"model":"m","prompt":[1],"max_tokens":null,"stop":null,"stream":null,"n":1,"logit_bias":null,"extra":3}'
    )
    assert request.max_tokens is None
    assert request.stops() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"model":"m"}', b'{"model":"m","prompt":[1.5]}', b'{"model":"m","prompt":["a"]}', b'{"prompt":[1]}'],
)
def test_malformed_bodies_are_refused(body):
    with pytest.raises(RequestError) as caught:
        decode_completion(body)
    assert caught.value.status == 400


def test_a_consumer_must_say_where_the_kv_is():
    params = KvTransferParams(do_remote_prefill=True, remote_num_tokens=3, remote_host="h", remote_port=1)
    with pytest.raises(RequestError):
        pull_source(params, 3)


def test_via_leads_through_the_relay():
    params = KvTransferParams(
        do_remote_prefill=True,
        remote_num_tokens=3,
        remote_host="10.0.0.1",
        remote_port=9101,
        remote_request_id="lease-1",
        via=Via("127.0.0.1", 7000, "ams-fra", "t-1", "relay"),
    )
    source = pull_source(params, 3)
    assert source.via is not None
    assert source.preamble() == (
        b'{"link":"ams-fra","target":"10.0.0.1:9101","transfer_id":"t-1","pipeline":"relay",'
        b'"service_class":"default"}\n'
    )


async def test_work_is_cancelled_and_awaited_when_the_client_goes():
    gone, is_cleaned = asyncio.Event(), False

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        nonlocal is_cleaned
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            is_cleaned = True

    asyncio.get_running_loop().call_later(0.01, gone.set)
    with pytest.raises(ClientClosedError):
        await until_disconnect(receive, work())
    assert is_cleaned


async def test_work_that_ends_first_gives_its_result():
    async def receive():
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def work() -> int:
        return 7

    assert await until_disconnect(receive, work()) == 7
