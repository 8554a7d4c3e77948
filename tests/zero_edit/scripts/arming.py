"""A worker without replicas dies at a place of one of its calls. For the scripts of tests."""

import os

IN_A_COPY = "in a copy"


def arm(rank, deaths):
    """Die at these places of calls or copies, by their numbers."""
    copy = next((number for number in deaths if deaths[number] == IN_A_COPY), None)
    places = {number: place for number, place in deaths.items() if number != copy}
    from ftrun.core.replay.pacing import Pace
    from ftrun.inject.zero_edit.world.replayed import ReplayedWorld as World
    from ftrun.snapshots.area import Area

    begins_step, begin, through, write = Pace.begins, World.begin, World.is_through, Area.write

    def at_each_step(pace, *args, **kwargs):
        pace.share = 1e9
        return begins_step(pace, *args, **kwargs)

    def die(place):
        died = os.open("died", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(died, f"{rank} {place}\n".encode())
        os.kill(os.getpid(), 9)

    def begins(world, shell, call):
        place = "" if world.is_apart else places.get(world.count)
        if place == "before":
            die(place)
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

    Pace.begins, World.begin, World.is_through, Area.write = (
        at_each_step, begins, is_through, writes
    )  # fmt: skip
