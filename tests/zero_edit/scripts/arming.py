"""A worker without replicas dies at a place of one of its calls. For the scripts of tests."""

import os

IN_A_COPY, IN_AN_OBJECT = "in a copy", "in an object"


def send_objects_twice():
    """A bug that was: what a call gives from the log looks like that of other members, so that a
    replacement makes a call more than its peers, and all wait for ever."""
    from ftrun.inject.zero_edit.world.replayed import ReplayedWorld as World

    answer = World.answer_from_log

    def answers(world, call):
        answer(world, call)
        call.tag = None

    World.answer_from_log = answers


def arm(rank, deaths):
    """Die at these places of calls or copies, by their numbers.

    "in an object": before the second of the two calls that send one, at the first from then on.
    """
    copy = next((number for number in deaths if deaths[number] == IN_A_COPY), None)
    in_object = [number for number, place in deaths.items() if place == IN_AN_OBJECT]
    places = {x: place for x, place in deaths.items() if x not in (copy, *in_object)}
    from ftrun.core.replay import pacing
    from ftrun.inject.zero_edit.world import kinds
    from ftrun.inject.zero_edit.world.replayed import ReplayedWorld as World
    from ftrun.snapshots.area import Area

    pacing.SHARE, pacing.REPEAT_S = 1e9, 0.0  # a generation at each step
    kinds.GATHERED_BYTES_MIN = 0  # small gathers go the way of large ones
    begin, through, write = World.begin, World.is_through, Area.write

    def die(place):
        died = os.open("died", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(died, f"{rank} {place}\n".encode())
        os.kill(os.getpid(), 9)

    def begins(world, shell, call):
        place = "" if world.is_apart else places.get(world.count)
        if place == "before":
            die(place)
        if world.unit and not world.is_apart and any(x <= world.count for x in in_object):
            die(IN_AN_OBJECT)
        begin(world, shell, call)
        if place == "issued":
            die(place)

    def is_through(world, call):
        place = places.get(call.at)
        if place == "has its result":
            die(place)
        through(world, call)
        if place == "logged":
            die(place)

    def writes(area, made, *args, **kwargs):
        if made == copy:
            area.memory.fill = lambda *_: die(IN_A_COPY)
        return write(area, made, *args, **kwargs)

    World.begin, World.is_through, Area.write = begins, is_through, writes
