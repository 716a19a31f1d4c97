"""Secrets of the Kafka client come from the environment, and from nowhere that is shown or kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.errors import UsageError
from headrace.infra.kafka import client_settings
from headrace.infra.kafka.client_settings import LEAST_POLL_MS, check_client_settings, read_client_settings
from headrace.infra.kafka.clients import Connection, KafkaAway, RunAddress, refuse_missing_token
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.server_settings import Kafka, Store
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run import run as runs
from headrace.infra.run.revisions import find_differences
from headrace.infra.run.run import Run
from headrace.infra.store.bucket import STORE_TIMEOUT_S
from headrace.infra.store.object_store import StoreAddress, StoreUnavailable
from headrace.schemas.records import ClaimCheck

SECRET = "correct-horse-battery-staple"


def test_settings_are_given_as_json_or_as_the_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"sasl.username": "me", "sasl.password": SECRET}
    monkeypatch.setenv("HEADRACE_KAFKA_CLIENT", json.dumps(wanted))
    assert read_client_settings() == wanted
    (tmp_path / "client.json").write_text(json.dumps(wanted))
    monkeypatch.setenv("HEADRACE_KAFKA_CLIENT", str(tmp_path / "client.json"))
    assert read_client_settings() == wanted
    found = parse_run("kafka://host:1/run").connection
    assert found.client == wanted
    assert SECRET not in repr(found)
    monkeypatch.delenv("HEADRACE_KAFKA_CLIENT")
    assert read_client_settings() == {}


@pytest.mark.parametrize(
    "text",
    [
        f'{{"sasl.password": "{SECRET}"', f'{{"sasl.password": ["{SECRET}"]}}', f'{{"sasl.pasword": "{SECRET}"}}',
        f'{{"socket.timeout.ms": "{SECRET}"}}', "no/such/file", "", "[]", "{",
        f"sasl.password={SECRET}", f'"sasl.password": "{SECRET}"', "[" * 100_000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_without_a_word_of_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_CLIENT", text)
    with pytest.raises(UsageError, match="HEADRACE_KAFKA_CLIENT") as caught:
        read_client_settings()
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None, "a trace would quote the text"


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({"sasl.mechnism": "PLAIN"}, "sasl.mechnism is not a librdkafka setting"),
        ({"socket.timeout.ms": "soon"}, "socket.timeout.ms does not take the value"),
        ({"error_cb": "print"}, "error_cb is a function or an object of the Python client, .*: leave it out"),
        ({"oauth_cb": "get"}, r"oauth_cb cannot be .*own function as `package\.module:function`.*method=oidc with"),
        ({"oauth_cb": "nowhere:get"}, "oauth_cb: there is no module nowhere: .*Put it beside the recipe"),
        (
            {"isolation.level": "read_uncommitted"},
            "isolation.level must be read_committed, because the guarantees of a run depend on it",
        ),
        ({"enable.auto.commit": "true"}, "enable.auto.commit must be false"),
        ({"enable.idempotence": "false"}, "enable.idempotence must be true"),
        ({"acks": "1"}, "acks must be all"),
        ({"group.protocol": "classic"}, "group.protocol must be consumer"),
        ({"transactional.id": "mine"}, "transactional.id is set by each component"),
        ({"max.in.flight": "10"}, r"max\.in\.flight conflicts with a setting that every component .*must be set <= 5"),
        ({"message.max.bytes": "1000"}, r"message\.max\.bytes must be 1000000 or more"),
        ({"max.poll.interval.ms": "44999"}, r"max\.poll\.interval\.ms must be 45000 or more"),
        ({"session.timeout.ms": "45000"}, r"session\.timeout\.ms conflicts with a setting that every component makes"),
        ({"allow.auto.create.topics": "true"}, r"allow\.auto\.create\.topics must be false"),
        (
            {"sasl.jaas.config": "PlainLoginModule"},
            r"sasl\.jaas\.config is a setting of Java clients: give librdkafka's setting instead",
        ),
    ],
)
def test_a_setting_that_librdkafka_does_not_take_is_named_where_it_was_written(
    client: dict[str, str], says: str, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    [(key, value)] = client.items()
    recipe.write_text(f'extends = "arithmetic"\n[kafka.client]\n"{key}" = "{value}"\n')
    with pytest.raises(UsageError, match=rf"mine\.toml: kafka\.client: {says}"):
        load_recipe(str(recipe))


def test_settings_that_need_others_are_looked_at_together() -> None:
    half = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    check_client_settings(half, "recipe", is_complete=False)
    with pytest.raises(UsageError, match=r"recipe: librdkafka does not take .* together: .*sasl\.username"):
        check_client_settings(half, "recipe")
    check_client_settings({**half, "sasl.username": "me", "sasl.password": SECRET}, "recipe")
    check_client_settings({"acks": "all", "enable.auto.commit": "false"}, "recipe")


def test_what_librdkafka_says_of_settings_together_is_not_quoted_where_it_holds_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_fault(client: dict[str, str]) -> str | None:
        return f"neither {SECRET} nor me" if len(client) > 1 else None

    monkeypatch.setattr(client_settings, "_find_fault", find_fault)
    with pytest.raises(UsageError, match=r"sasl\.username, sasl\.mechanism together: neither .* nor me$"):
        check_client_settings({"sasl.username": "me", "sasl.mechanism": "PLAIN"}, "recipe")
    with pytest.raises(UsageError, match=r"sasl\.username, sasl\.password together$"):
        check_client_settings({"sasl.username": "me", "sasl.password": SECRET}, "recipe")


def test_settings_of_a_recipe_and_of_the_environment_have_to_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    monkeypatch.delenv("HEADRACE_KAFKA_CLIENT", raising=False)
    servers = Servers(
        Kafka(bootstrap="host:1", client=half), Store(endpoint="http://host:2"), DataFolder(Path("data")), print
    )
    with pytest.raises(UsageError, match=r"^kafka.client and HEADRACE_KAFKA_CLIENT: .* together: .*sasl\.username"):
        servers.connection  # noqa: B018 - a property that looks
    monkeypatch.setenv("HEADRACE_KAFKA_CLIENT", json.dumps({"sasl.username": "me", "sasl.password": SECRET}))
    again = Servers(
        Kafka(bootstrap="host:1", client=half), Store(endpoint="http://host:2"), DataFolder(Path("data")), print
    )
    assert again.connection.client == {**half, "sasl.username": "me", "sasl.password": SECRET}


@pytest.mark.parametrize(
    "client", [{"security.protocol": "ssl", "ssl.ca.location": "/not/there"}, {"security.protocol": "sasl_ssl"}]
)
def test_a_run_cannot_be_opened_with_settings_of_which_no_client_can_be_made(
    client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_CLIENT", json.dumps(client))
    with pytest.raises(UsageError, match=r"^HEADRACE_KAFKA_CLIENT: librdkafka does not take security\.protocol"):
        parse_run("kafka://host:1/run")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sasl.password", SECRET),
        ("sasl.oauthbearer.config", SECRET),
        ("sasl.oauthbearer.client.secret", SECRET),
        ("sasl.oauthbearer.client.credentials.client.secret", SECRET),
        ("sasl.oauthbearer.assertion.private.key.passphrase", SECRET),
        ("sasl.oauthbearer.assertion.private.key.pem", SECRET),
        ("ssl.key.password", SECRET),
        ("ssl.key.pem", SECRET),
        ("ssl.keystore.password", SECRET),
        ("sasl.oauthbearer.token.endpoint.url", f"https://me:{SECRET}@host/token"),
    ],
)
def test_a_recipe_with_a_secret_is_refused_with_the_way_to_give_it(key: str, value: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "arithmetic"\n[kafka.client]\n"{key}" = "{value}"\n')
    with pytest.raises(
        UsageError, match=rf"mine\.toml: kafka\.client must not hold {key}.*HEADRACE_KAFKA_CLIENT"
    ) as caught:
        load_recipe(str(recipe))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("", [f"kafka.client.sasl.password={SECRET}"]),
        (f'[kafka]\nclient = "sasl.password={SECRET}"', []),
        (f'[kafka]\nclient = ["sasl.password={SECRET}"]', []),
        (f'[kafka.client]\nsasl.password = "{SECRET}"', []),
        (f'[kafka]\nbootstrap = "me:{SECRET}@host:9092"', []),
        (f'[kafka]\nbootstrap = "sasl://me:{SECRET}@host:9092"', []),
    ],
)
def test_a_secret_in_the_wrong_form_is_refused_and_not_quoted(table: str, words: list[str], tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "arithmetic"\n{table}\n')
    with pytest.raises(UsageError, match=r"kafka\.(client|bootstrap)") as caught:
        load_recipe(str(recipe), words)
    assert SECRET not in str(caught.value)


def test_a_run_of_an_older_build_with_a_secret_in_its_recipe_is_gone_on_with_and_never_shows_it() -> None:
    new = load_recipe("arithmetic")
    plain = json.loads(new.to_json())
    plain["kafka"]["client"] = {"sasl.password": SECRET}
    old = Recipe.from_json(json.dumps(plain))
    assert find_differences(old, new) == []
    plain["kafka"]["client"]["sasl.username"] = "me"
    assert find_differences(Recipe.from_json(json.dumps(plain)), new) == [
        'kafka.client.sasl.username: "me" -> (not set)',
        "kafka.client: (not set) -> {}",
    ]


def test_a_wait_for_the_store_ends_before_a_member_of_a_group_must_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    class Away:
        def get(self, *_: object) -> bytes:
            nonlocal now_s
            now_s += 4 * STORE_TIMEOUT_S  # two requests, which both connect and read in vain
            raise StoreUnavailable("no answer")

    class Pauses:
        def __init__(self, _first_s: float, longest_s: float) -> None:
            self.longest_s = longest_s

        def next_s(self) -> float:
            nonlocal now_s
            now_s += self.longest_s
            return 0.0

    monkeypatch.setattr(runs, "Backoff", Pauses)
    monkeypatch.setattr(runs.time, "monotonic", lambda: now_s)
    for interval_ms in (LEAST_POLL_MS, 60_000, 100_000, 300_000):
        client = {} if interval_ms == 300_000 else {"max.poll.interval.ms": str(interval_ms)}  # librdkafka's default
        run = Run(RunAddress(Connection("k:1", client), "r"), "one", (), StoreAddress("s:1", "b", "a", "b"))
        run.__dict__["store"] = Away()
        before = now_s
        with pytest.raises(StoreUnavailable):
            run.get(ClaimCheck("main", "groups/a", "a", 1))
        assert 15 < now_s - before < interval_ms / 1000


def test_a_token_function_beside_the_recipe_is_called_by_the_client_and_its_error_is_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tokens.py").write_text(
        "def get(config):\n    if not config:\n        raise OSError('the vault is away')\n    return config, 9e9\n"
    )
    recipe = tmp_path / "mine.toml"
    recipe.write_text('extends = "arithmetic"\n[kafka.client]\n"oauth_cb" = "my_tokens:get"\n')
    monkeypatch.setattr("sys.path", [*sys.path])
    connection = Connection("nobody:1", load_recipe(str(recipe)).kafka.client)
    get = connection.config()["oauth_cb"]
    assert get("token") == ("token", 9e9)
    assert get("") is None
    why = "my_tokens:get gives no token (OSError: the vault is away at my_tokens.py:3 in get): correct the function"
    with pytest.raises(KafkaAway) as caught, refuse_missing_token(connection):
        raise KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
    assert str(caught.value) == f"no Kafka client can be made: {why}"
