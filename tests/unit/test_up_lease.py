"""Who runs `headrace up` for a run, as members of a group tell it; stand-ins for Kafka's clients."""

from __future__ import annotations

import json
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S
from structlog.testing import capture_logs

from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.run import up_lease
from headrace.infra.run.up_lease import Holder, UpLease, find_holders

SINCE_MS = 1_700_000_000_000
ADDRESS = RunAddress(Connection("k:1"), "demo")


class Group:
    """The group `demo.up`: the ids of its members, in the order in which they joined."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.asked: list[str] = []
        self.asked_for: list[str] = []
        self.lets_in_after = 0
        """Questions for its members before anybody becomes one."""
        self.is_lost = False
        """Whether the clients of members have lost every broker."""

    def describe_consumer_groups(self, names: list[str], *, request_timeout: float) -> dict[str, Any]:
        assert self.asked_for, "the admin client asks nothing before there is a coordinator"
        assert request_timeout <= 5, "an answer that does not come is asked for again in time"
        self.asked += names
        described = SimpleNamespace(members=[SimpleNamespace(client_id=one) for one in self.members])
        return {name: SimpleNamespace(result=lambda _timeout_s: described) for name in names}

    def open_member(self, connection: Connection, _name: str, _group: str) -> Any:
        """Return a consumer, which becomes a member by polling."""
        client_id = connection.client["client.id"]

        def poll(_timeout_s: float) -> None:
            if client_id not in self.members and len(self.asked) > self.lets_in_after:
                self.members.append(client_id)
            threading.Event().wait(0.001)

        def close() -> None:
            if client_id in self.members:
                self.members.remove(client_id)

        return SimpleNamespace(subscribe=lambda *_, **__: None, poll=poll, close=close)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(up_lease, "get_admin", lambda _: made)
    monkeypatch.setattr(up_lease, "await_coordinator", lambda *_: made.asked_for.append("coordinator"))
    monkeypatch.setattr(up_lease, "open_consumer", made.open_member)
    monkeypatch.setattr(up_lease, "PAUSE_S", 0.001)
    monkeypatch.setattr(up_lease, "BrokerContact", lambda *_: SimpleNamespace(has_lost_brokers=lambda: made.is_lost))
    return made


@pytest.fixture
def hers() -> Holder:
    return Holder("her-host", "/data/demo", SINCE_MS)


def test_who_takes_a_run_sees_all_others_of_another_machine_or_another_folder_until_they_leave(
    group: Group, hers: Holder
) -> None:
    with UpLease(hers) as first:
        assert first.take(ADDRESS) == []
        for host, folder in (("his-host", "/data/demo"), ("her-host", "/data/again")):
            with UpLease(Holder(host, folder, SINCE_MS + 1)) as second:
                assert second.take(ADDRESS) == [hers]
                assert find_holders(ADDRESS) == [hers, Holder(host, folder, SINCE_MS + 1)], "who asks is no member"
        with UpLease(Holder("her-host", "/data/demo", SINCE_MS + 1)) as again:
            assert again.take(ADDRESS) == [], "of one folder, a lock sees to it that the other is dead"
    assert group.members == []
    assert set(group.asked) == {"demo.up"}


def test_whoever_looks_is_a_member_itself_so_of_two_at_once_one_sees_the_other(group: Group, hers: Holder) -> None:
    his, found = Holder("his-host", "/data/demo", SINCE_MS), dict[str, list[Holder]]()
    group.lets_in_after = 10

    def take(holder: Holder, lease: UpLease) -> None:
        found[holder.host] = lease.take(ADDRESS)

    with UpLease(hers) as first, UpLease(his) as second:
        threads = [threading.Thread(target=take, args=one) for one in ((hers, first), (his, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found.keys() == {"her-host", "his-host"}
    assert any(found.values())


@pytest.mark.parametrize("stranger", ["rdkafka", ""])
def test_what_else_is_a_member_is_nobody_who_runs_it(group: Group, hers: Holder, stranger: str) -> None:
    group.members.append(stranger)
    with UpLease(hers) as lease:
        assert lease.take(ADDRESS) == []


def test_an_id_for_all_clients_in_the_settings_hides_nobody(group: Group, hers: Holder) -> None:
    address = RunAddress(Connection("k:1", {"client.id": "team-a"}), "demo")
    with UpLease(hers) as lease:
        assert lease.take(address) == []
        assert [json.loads(one)["folder"] for one in group.members] == ["/data/demo"]


def test_a_group_that_lets_nobody_in_is_logged_and_holds_nobody_up(
    group: Group, hers: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_lease, "JOIN_S", 0.05)
    group.lets_in_after = 1 << 20
    with capture_logs() as lines, UpLease(hers) as lease:
        assert lease.take(ADDRESS) == []
    assert [line["event"] for line in lines] == ["lease.not_taken"]


def test_a_lease_whose_client_has_lost_every_broker_joins_again(
    group: Group, hers: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: SimpleQueue[None] = SimpleQueue()
    open_member = group.open_member

    def note_opening(*given: Any) -> Any:
        opened.put(None)
        return open_member(*given)

    monkeypatch.setattr(up_lease, "open_consumer", note_opening)
    with UpLease(hers) as lease:
        assert lease.take(ADDRESS) == []
        opened.get(timeout=PATIENCE_S)
        group.is_lost = True
        opened.get(timeout=PATIENCE_S)
        group.is_lost = False
