"""One caller's commands that wait do not keep another's out."""

from __future__ import annotations

from psruntime.core.steering.commands import Command, Kind, Overrides
from psruntime.core.steering.steering import MOST_OPEN, MOST_OPEN_OF_HOST, Steering


def test_a_host_leaves_room_for_the_others() -> None:
    steering = Steering(Overrides(mode="async"), lambda *_, **__: None)

    def take(host: str, most: int) -> int:
        taken = 0
        while taken < most and not steering.is_full_for(f"{host}:{40000 + taken}"):
            steering.take(Command(Kind.SAVE, f"{host}-{taken}", by=f"{host}:{40000 + taken}"), 7)
            taken += 1
        return taken

    assert take("10.0.0.1", 1000) == MOST_OPEN_OF_HOST
    assert take("[2001:db8::1]", 3) == 3
    hosts = MOST_OPEN // MOST_OPEN_OF_HOST
    assert sum(take(f"10.0.1.{number}", 1000) for number in range(hosts + 1)) == MOST_OPEN - MOST_OPEN_OF_HOST - 3
    assert steering.is_full_for("10.9.9.9:1")
