"""Log-probabilities follow the ids of an answer, whatever a cut drops and whatever an engine leaves out."""

from engine_agents.gateway.logprobs import EngineLogprobs, JoinedLogprobs, joined


def said(*tokens: str) -> EngineLogprobs:
    top = [{token: -0.5, "other": -1.5, "third": -2.5} for token in tokens]
    return EngineLogprobs(list(tokens), [-0.5] * len(tokens), top)


def test_what_a_cut_drops_is_made_again_by_the_next_decoder():
    likely = JoinedLogprobs(2, is_chat=False)
    likely.add(0, 3, said("a", "bc", "half"))
    first = likely.take(2)
    likely.add(2, 2, said("d", "e"))
    whole = joined([first, likely.take(2)])
    assert whole["tokens"] == ["a", "bc", "d", "e"]
    assert whole["text_offset"] == [0, 1, 3, 4]
    assert whole["token_logprobs"] == [-0.5] * 4


def test_tokens_that_an_engine_does_not_tell_about_are_null_and_keep_their_place():
    likely = JoinedLogprobs(1, is_chat=True)
    likely.add(0, 2, None)
    likely.add(3, 1, said("x"))
    content = likely.take(4)["content"]
    assert [entry["logprob"] for entry in content] == [None, None, None, -0.5]
    assert content[0]["top_logprobs"] == []


def test_a_chat_has_as_many_alternatives_as_it_asked_for_the_likeliest_first():
    for count in (0, 2):
        likely = JoinedLogprobs(count, is_chat=True)
        likely.add(0, 1, said("é"))
        (entry,) = likely.take(1)["content"]
        assert entry["bytes"] == [0xC3, 0xA9]
        assert [each["token"] for each in entry["top_logprobs"]] == ["é", "other"][:count]


def test_a_part_of_a_character_has_no_bytes_to_tell():
    likely = JoinedLogprobs(0, is_chat=True)
    likely.add(0, 1, said("\ufffd"))
    assert likely.take(1)["content"][0]["bytes"] is None


def test_no_documents_are_no_object():
    assert joined([]) is None
