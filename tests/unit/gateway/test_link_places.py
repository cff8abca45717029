"""Places on a link that the gateway itself keeps count of."""

import asyncio

import pytest

from engine_agents.gateway.link_places import LinkPlaces


@pytest.fixture
def places():
    made = LinkPlaces()
    made.set_limits({"ams-fra": 2})
    return made


async def started(places, *priorities):
    """Tasks that want a place, in this order."""
    tasks = []
    for priority in priorities:
        tasks.append(asyncio.create_task(places.take("ams-fra", priority)))
        await asyncio.sleep(0)
    return tasks


def done(tasks):
    return [task.done() and not task.cancelled() for task in tasks]


async def turn_of_the_loop():
    for _ in range(3):
        await asyncio.sleep(0)


async def test_no_more_than_the_limit_send_and_the_others_follow_by_class_then_arrival(places):
    tasks = await started(places, 0, 0, 0, 5, 0)
    await turn_of_the_loop()
    assert (done(tasks), places.taken, places.waiting("ams-fra")) == ([True, True, False, False, False], 2, 3)
    places.give_back("ams-fra")
    await turn_of_the_loop()
    assert done(tasks) == [True, True, False, True, False]
    places.give_back("ams-fra")
    await turn_of_the_loop()
    assert done(tasks) == [True, True, True, True, False]
    for _ in range(3):
        places.give_back("ams-fra")
        await turn_of_the_loop()
    assert (done(tasks), places.taken, places.waiting("ams-fra")) == ([True] * 5, 0, 0)


async def test_who_leaves_while_it_waits_holds_up_nobody(places):
    tasks = await started(places, 0, 0, 9, 0)
    tasks[2].cancel()
    await turn_of_the_loop()
    assert places.waiting("ams-fra") == 1
    places.give_back("ams-fra")
    await turn_of_the_loop()
    assert (done(tasks), places.taken) == ([True, True, False, True], 2)


async def test_who_leaves_at_the_moment_of_its_turn_passes_it_on(places):
    tasks = await started(places, 0, 0, 0, 0)
    places.give_back("ams-fra")  # the third's turn, which it has not seen yet
    tasks[2].cancel()
    await turn_of_the_loop()
    assert (done(tasks), places.taken) == ([True, True, False, True], 2)


async def test_a_higher_limit_lets_those_in_who_wait_and_a_lower_one_sends_nobody_away(places):
    tasks = await started(places, 0, 0, 0, 0)
    places.set_limits({"ams-fra": 3})
    await turn_of_the_loop()
    assert done(tasks) == [True, True, True, False]
    places.set_limits({"ams-fra": 1})
    places.give_back("ams-fra")
    places.give_back("ams-fra")
    await turn_of_the_loop()
    assert (done(tasks), places.taken) == ([True, True, True, False], 1)
    places.give_back("ams-fra")
    await turn_of_the_loop()
    assert done(tasks) == [True] * 4
