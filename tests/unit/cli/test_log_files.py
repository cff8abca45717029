import os

from control.cli.log_files import bound_log, last_lines, open_log


def test_a_long_log_is_moved_away_and_its_writer_goes_on_at_the_start(tmp_path):
    path = tmp_path / "a.log"
    log = open_log(path)
    try:
        os.write(log, b"x" * 50)
        assert bound_log(path, max_bytes=40)
        os.write(log, b"after\n")
    finally:
        os.close(log)
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 50


def test_a_short_or_missing_log_is_left_alone(tmp_path):
    path = tmp_path / "a.log"
    assert not bound_log(path)
    path.write_text("short")
    assert not bound_log(path)
    assert path.read_text() == "short"


def test_the_end_of_a_log_is_its_last_lines(tmp_path):
    path = tmp_path / "a.log"
    assert last_lines(path) == []
    path.write_text("\n".join(str(number) for number in range(100)))
    assert last_lines(path, count=2) == ["98", "99"]
