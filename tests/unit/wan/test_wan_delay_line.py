from hypothesis import given
from hypothesis import strategies as st

from engine_agents.wan.delay_line import ByteQueue, DelayLine


@given(chunks=st.lists(st.binary(max_size=50)), cuts=st.lists(st.integers(min_value=0, max_value=80)))
def test_a_queue_gives_back_the_same_bytes_however_it_is_cut(chunks, cuts):
    queue, out = ByteQueue(), b""
    for chunk in chunks:
        queue.push(chunk)
    for cut in cuts:
        before = queue.size_bytes
        piece = b"".join(queue.take(cut))
        assert len(piece) == min(cut, before)
        out += piece
    assert out + b"".join(queue.take(queue.size_bytes)) == b"".join(chunks)
    assert queue.size_bytes == 0


def test_bytes_come_out_after_the_delay_and_not_before():
    line = DelayLine()
    line.push(1.0, [b"a"])
    line.push(2.0, [b"b"])
    assert line.pop_due(1.4, 0.5) == []
    assert line.next_due_s(0.5) == 1.5
    assert line.pop_due(1.5, 0.5) == [[b"a"]]
    assert line.size_bytes == 1
    assert line.pop_due(9.0, 0.5) == [[b"b"]]
    assert line.next_due_s(0.5) is None


def test_a_shorter_delay_holds_for_what_is_on_its_way():
    line = DelayLine()
    line.push(0.0, [b"a"])
    assert line.pop_due(0.1, 5.0) == []
    assert line.pop_due(0.1, 0.05) == [[b"a"]]


def test_the_end_of_a_stream_stays_behind_its_bytes():
    line = DelayLine()
    line.push(0.0, [b"a", b"b"])
    line.push(0.0, [])
    assert line.pop_due(1.0, 1.0) == [[b"a", b"b"], []]
