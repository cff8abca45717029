"""Conversations with tools, as templates see them that know messages only."""

import pytest

from engine_agents.nodes.hermes_prompt import hermes_messages, needs_hermes

TOOL = {"type": "function", "function": {"name": "weather", "description": "Wie ist das Wetter in Zürich?"}}
USER = {"role": "user", "content": "warm?"}


def call(arguments):
    return {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def test_a_chat_without_tools_needs_nothing():
    assert not needs_hermes([{"role": "system", "content": "be kind"}, USER], [])
    assert needs_hermes([USER], [TOOL])
    assert needs_hermes([{"role": "tool", "content": "1"}], [])
    assert needs_hermes([{"role": "assistant", "tool_calls": [call("{}")]}], [])


def test_tools_stand_in_the_system_message_which_is_made_where_there_is_none():
    with_system = hermes_messages([{"role": "system", "content": "be kind"}, USER], [TOOL])
    without = hermes_messages([USER], [TOOL])
    assert with_system[0]["content"].startswith("be kind\n\n# Tools\n")
    assert "Zürich" in without[0]["content"]
    assert [message["role"] for message in without] == ["system", "user"]


def test_calls_and_results_become_text():
    messages = [
        {"role": "assistant", "content": "Looking.", "tool_calls": [call('{"city": "Bern"}'), call("no json")]},
        {"role": "tool", "content": "24"},
        {"role": "tool", "content": [{"type": "text", "text": "25"}]},
        USER,
    ]
    asked, results, user = hermes_messages(messages, [])
    assert asked["content"].startswith('Looking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}')
    assert '"arguments": "no json"' in asked["content"]
    assert results == {
        "role": "user",
        "content": "<tool_response>\n24\n</tool_response>\n<tool_response>\n25\n</tool_response>",
    }
    assert user == USER


@pytest.mark.parametrize("broken", [3, {}, {"function": {}}, {"function": 3}])
def test_a_call_without_a_name_is_refused(broken):
    with pytest.raises(ValueError, match="name"):
        hermes_messages([{"role": "assistant", "tool_calls": [broken]}], [])
