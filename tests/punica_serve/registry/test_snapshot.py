"""Who may use what, as values in and values out."""

import pytest

from punica_serve.errors import AdapterNotFound, AdapterRejected, InvalidRequest
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.records import AdapterVersion, ApiKey, Grant, Tenant
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.registry.snapshot import RegistrySnapshot, digest_of
from punica_serve.registry.snapshot_changes import Changes


def adapter(tenant: str, name: str, version: int = 1, *, pinned: bool = False) -> AdapterVersion:
    ref = AdapterRef(digest=f"{tenant}/{name}@{version}", uri="/store", num_bytes=8, ranks={"q_proj": 4})
    return AdapterVersion(tenant, tenant, name, version, ref, None, None, None, pinned, created_s=0.0)


def tenant(tenant_id: str, name: str) -> Tenant:
    return Tenant(tenant_id, name, TenantQuota(), None, None, suspended=False, created_s=0.0)


def snapshot_of(*adapters: AdapterVersion, grants: tuple[Grant, ...] = (), shared: str = "") -> RegistrySnapshot:
    overlay = SharedAdapters({name: adapter("shared", name) for name in shared.split()})
    changes = Changes(
        1,
        tenants=tuple((tenant(name, name), True) for name in ("acme", "bolt", "carl")),
        adapters=tuple((row, True) for row in adapters),
        grants=tuple((row, True) for row in grants),
    )
    return RegistrySnapshot(shared=overlay).after(changes)


EVERYTHING = snapshot_of(
    adapter("acme", "own"),
    adapter("acme", "both"),
    adapter("bolt", "secret"),
    adapter("bolt", "granted"),
    adapter("bolt", "both"),
    grants=(Grant("bolt", "granted", "acme"),),
    shared="both roman granted",
)


@pytest.mark.parametrize(
    ("caller", "name", "found"),
    [
        ("acme", "own", "acme/own"),
        ("acme", "both", "acme/both"),
        ("acme", "granted", "bolt/granted"),
        ("acme", "roman", "shared/roman"),
        ("acme", "shared/both", "shared/both"),
        ("acme", "acme/both", "acme/both"),
        ("acme", "bolt/granted", "bolt/granted"),
        ("acme", "bolt/secret", None),
        ("acme", "bolt/both", None),
        ("acme", "secret", None),
        ("acme", "bolt/nothing", None),
        ("acme", "acme/own/x", None),
        ("acme", "", None),
        ("acme", "/", None),
        ("bolt", "both", "bolt/both"),
        ("bolt", "own", None),
        ("carl", "both", "shared/both"),
        ("carl", "granted", "shared/granted"),
    ],
)
def test_a_name_means_ones_own_then_what_was_granted_then_what_is_shared(
    caller: str, name: str, found: str | None
) -> None:
    if found is None:
        with pytest.raises(AdapterNotFound):
            EVERYTHING.adapter(caller, name)
    else:
        assert EVERYTHING.adapter(caller, name).full_name == found


@pytest.mark.parametrize(
    ("caller", "name", "shadowed"),
    [
        ("acme", "acme/own", ()),
        ("acme", "acme/both", ("shared/both",)),
        ("acme", "bolt/granted", ("shared/granted",)),
        ("acme", "shared/roman", ()),
        ("acme", "shared/both", ()),
        ("bolt", "bolt/secret", ()),
    ],
)
def test_what_else_a_short_name_could_mean_is_known(caller: str, name: str, shadowed: tuple[str, ...]) -> None:
    assert EVERYTHING.shadowed_by(caller, EVERYTHING.adapter(caller, name)) == shadowed


def test_an_own_adapter_shadows_all_that_were_granted() -> None:
    own, grants = adapter("acme", "x"), (Grant("bolt", "x", "acme"), Grant("carl", "x", "acme"))
    there = snapshot_of(own, adapter("bolt", "x"), adapter("carl", "x"), grants=grants)
    assert there.shadowed_by("acme", own) == ("bolt/x", "carl/x")


def test_an_admin_names_anybodys_adapter_in_full_and_no_other_way() -> None:
    assert EVERYTHING.adapter("acme", "bolt/secret", is_admin=True).full_name == "bolt/secret"
    with pytest.raises(AdapterNotFound):
        EVERYTHING.adapter("acme", "secret", is_admin=True)


def test_somebody_elses_adapter_and_none_at_all_are_told_apart_by_nothing() -> None:
    with pytest.raises(AdapterNotFound) as theirs:
        EVERYTHING.adapter("acme", "bolt/secret")
    with pytest.raises(AdapterNotFound) as none:
        snapshot_of().adapter("acme", "bolt/secret")
    assert (theirs.value.message, theirs.value.param) == (none.value.message, none.value.param)


def test_a_name_that_was_granted_twice_must_be_said_in_full() -> None:
    snapshot = snapshot_of(
        adapter("bolt", "x"), adapter("carl", "x"), grants=(Grant("bolt", "x", "acme"), Grant("carl", "x", "acme"))
    )
    with pytest.raises(InvalidRequest, match="could be bolt/x and carl/x; give the full name"):
        snapshot.adapter("acme", "x")
    assert snapshot.adapter("acme", "carl/x").full_name == "carl/x"
    assert snapshot.name_for("acme", adapter("carl", "x")) == "carl/x"


def test_callers_list_what_they_may_use() -> None:
    def names(caller: str, *, is_admin: bool = False) -> list[str]:
        return [row.full_name for row in EVERYTHING.adapters(caller, is_admin=is_admin)]

    shared = ["shared/both", "shared/roman", "shared/granted"]
    assert names("acme") == [*shared, "acme/both", "acme/own", "bolt/granted"]
    assert names("carl") == shared
    assert names("carl", is_admin=True) == [
        *shared,
        "acme/both",
        "acme/own",
        "bolt/both",
        "bolt/granted",
        "bolt/secret",
    ]


def test_every_listed_adapter_has_a_name_that_leads_to_it() -> None:
    for caller in ("acme", "bolt", "carl"):
        for row in EVERYTHING.adapters(caller):
            assert EVERYTHING.adapter(caller, EVERYTHING.name_for(caller, row)) == row
    assert EVERYTHING.name_for("acme", adapter("shared", "roman")) == "roman"
    assert EVERYTHING.name_for("acme", adapter("shared", "both")) == "shared/both"


def test_an_adapter_of_the_config_file_that_was_refused_says_why() -> None:
    overlay = SharedAdapters(rejected={"bad": AdapterRejected("adapter_config.json: `r` is 0")})
    with pytest.raises(AdapterRejected, match=r"'bad' is not served: adapter_config\.json: `r` is 0"):
        RegistrySnapshot(shared=overlay).adapter("acme", "bad")


def test_the_config_file_comes_before_a_row_of_the_same_name() -> None:
    snapshot = snapshot_of(adapter("shared", "roman", 7), shared="roman")
    assert snapshot.adapter("acme", "roman").version == 1
    assert [row.version for row in snapshot.adapters("acme")] == [1]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_newest_version_is_served_in_whatever_order_the_rows_come(order: tuple[int, int]) -> None:
    rows = tuple((adapter("acme", "x", version), version == 2) for version in order)
    snapshot = snapshot_of(adapter("acme", "x", 1)).after(Changes(2, adapters=rows))
    assert snapshot.adapter("acme", "x").version == 2
    assert snapshot.digests() == {"acme/x@2"}


def test_the_end_of_the_newest_version_is_the_end_of_the_adapter() -> None:
    snapshot = snapshot_of(adapter("acme", "x", 2)).after(Changes(2, adapters=((adapter("acme", "x", 2), False),)))
    with pytest.raises(AdapterNotFound):
        snapshot.adapter("acme", "x")


def test_changes_may_come_twice() -> None:
    rows = ((adapter("acme", "x", 1), False), (adapter("acme", "x", 2), True))
    changes = Changes(2, adapters=rows, grants=((Grant("acme", "x", "bolt"), True),))
    once = snapshot_of(adapter("acme", "x", 1)).after(changes)
    assert once.after(changes) == once


def test_a_snapshot_never_changes() -> None:
    before = snapshot_of(adapter("acme", "x"), grants=(Grant("acme", "x", "bolt"),))
    before.after(Changes(2, adapters=((adapter("acme", "x"), False),), grants=((Grant("acme", "x", "bolt"), False),)))
    assert before.adapter("bolt", "x").full_name == "acme/x"


def test_pins_and_digests_are_those_of_what_is_served() -> None:
    snapshot = snapshot_of(adapter("acme", "x", pinned=True), adapter("acme", "y"), shared="roman")
    assert [row.name for row in snapshot.pinned()] == ["x"]
    assert snapshot.digests() == {"acme/x@1", "acme/y@1", "shared/roman@1"}


def test_a_key_is_known_by_its_secret_until_it_expires_or_is_revoked() -> None:
    key = ApiKey("k1", "acme-1", "acme", "user", "laptop", created_s=0.0, expires_s=100.0)
    snapshot = RegistrySnapshot().after(Changes(1, keys=((digest_of("ps-k1-secret"), key, True),)))
    assert snapshot.key_of("ps-k1-secret", now_s=99.0) == key
    assert snapshot.key_of("ps-k1-secret", now_s=100.0) is None
    assert snapshot.key_of("ps-k1-other", now_s=99.0) is None
    assert snapshot.key_of("\ud800", now_s=99.0) is None
    assert (snapshot.keys("acme"), snapshot.keys("bolt"), snapshot.keys()) == ((key,), (), (key,))
    revoked = snapshot.after(Changes(2, keys=((digest_of("ps-k1-secret"), key, False),)))
    assert revoked.key_of("ps-k1-secret", now_s=99.0) is None


def test_tenants_are_known_by_name() -> None:
    tenant = Tenant("acme-1", "acme", TenantQuota(requests_per_min=5), None, None, suspended=False, created_s=0.0)
    snapshot = RegistrySnapshot().after(Changes(1, tenants=((tenant, True),)))
    assert snapshot.tenant("acme") == tenant
    assert snapshot.tenants() == (tenant,)
    with pytest.raises(InvalidRequest, match=r"there is no tenant 'bolt'; list them with"):
        snapshot.tenant("bolt")
