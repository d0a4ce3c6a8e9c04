"""Registering, deleting, pinning and granting, and the limits on them."""

import asyncio

import pytest

from punica_serve.errors import (
    AdapterLimitReached,
    AdapterNotFound,
    AdapterRejected,
    Conflict,
    Forbidden,
    InvalidRequest,
    PunicaError,
)
from punica_serve.registry.names import check_text
from punica_serve.registry.records import AdapterVersion, ServedBase
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters
from registries import NO_QUOTA, Clock, OpenRegistry, ref_of

pytestmark = pytest.mark.anyio


async def test_what_is_registered_is_served_as_it_was_given(registry: Registry, clock: Clock) -> None:
    version, _ = await registry.register(
        "default", "x", ref_of("d1"), source_uri="s3://b/x", base_model="numbers", chat_template="{{ m }}", by="me"
    )
    ref = ref_of("d1")
    assert version == AdapterVersion(
        "default", "default", "x", 1, ref, "s3://b/x", "numbers", "{{ m }}", False, clock.now_s
    )
    assert registry.snapshot.adapter("default", "x") == version


async def test_other_registries_see_it_after_their_next_look(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    version, _ = await one.register("default", "x", ref_of("d1"), by="me")
    with pytest.raises(AdapterNotFound):
        other.snapshot.adapter("default", "x")
    assert (await other.refresh()).adapter("default", "x") == version
    later = await open_registry()
    assert later.snapshot.adapter("default", "x") == version


async def test_what_is_not_found_is_looked_for_once_more(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    version, _ = await one.register("default", "x", ref_of("d1"), by="me")
    assert await other.adapter("default", "x") == version
    with pytest.raises(AdapterNotFound):
        await other.adapter("default", "y")


async def test_a_name_has_versions_and_the_newest_is_served(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    for number, digest in enumerate(["a", "b", "a"], start=1):
        assert (await one.register("default", "x", ref_of(digest), by="me"))[0].version == number
        assert (await other.refresh()).adapter("default", "x").version == number
    await one.delete("default", "x", by="me")
    assert (await one.register("default", "x", ref_of("c"), by="me"))[0].version == 4
    assert (await other.refresh()).adapter("default", "x").ref == ref_of("c")
    assert other.snapshot == one.snapshot


async def test_the_same_bytes_again_are_no_new_version(registry: Registry) -> None:
    first, _ = await registry.register("default", "x", ref_of("a"), source_uri="s3://old", by="me")
    assert await registry.register("default", "x", ref_of("a"), source_uri="s3://old", by="me") == (first, False)
    again, _ = await registry.register("default", "x", ref_of("a"), source_uri="s3://new", by="me")
    assert (again.version, again.source_uri) == (1, "s3://new")
    assert registry.snapshot.adapter("default", "x") == again


async def test_a_name_may_have_to_be_new(registry: Registry) -> None:
    await registry.register("default", "x", ref_of("a"), by="me", must_be_new=True)
    with pytest.raises(Conflict, match="named 'x' exists already"):
        await registry.register("default", "x", ref_of("a"), by="me", must_be_new=True)
    await registry.delete("default", "x", by="me")
    await registry.register("default", "x", ref_of("a"), by="me", must_be_new=True)


async def test_two_tenants_may_use_one_name(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, by="me")).tenant_id
    mine, _ = await registry.register("default", "x", ref_of("a"), by="me")
    theirs, _ = await registry.register(acme, "x", ref_of("b"), by="me")
    assert registry.snapshot.adapter("default", "x") == mine
    assert registry.snapshot.adapter(acme, "x") == theirs
    await registry.delete(acme, "x", by="me")
    assert registry.snapshot.adapter("default", "x") == mine


async def test_what_is_deleted_is_gone(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    version, _ = await one.register("default", "x", ref_of("a"), by="me")
    await other.refresh()
    assert await one.delete("default", "x", by="me") == (version,)
    for registry in (one, other):
        with pytest.raises(AdapterNotFound):
            (await registry.refresh()).adapter("default", "x")
    with pytest.raises(AdapterNotFound, match="has no adapter 'x'"):
        await one.delete("default", "x", by="me")


async def test_later_versions_inherit_the_pin(registry: Registry) -> None:
    await registry.register("default", "x", ref_of("a"), by="me")
    assert (await registry.set_pinned("default", "x", True, by="me")).pinned
    second, _ = await registry.register("default", "x", ref_of("b"), by="me")
    assert registry.snapshot.pinned() == (second,)
    assert not (await registry.set_pinned("default", "x", False, by="me")).pinned
    assert registry.snapshot.pinned() == ()


async def test_a_grant_lasts_until_it_is_revoked_or_the_adapter_deleted(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, by="me")).tenant_id
    await registry.register("default", "x", ref_of("a"), by="me")
    for _ in range(2):
        await registry.grant("default", "x", "acme", by="me")
        assert registry.snapshot.adapter(acme, "x").full_name == "default/x"
        await registry.revoke("default", "x", "acme", by="me")
        with pytest.raises(AdapterNotFound):
            registry.snapshot.adapter(acme, "x")
    await registry.grant("default", "x", "acme", by="me")
    await registry.delete("default", "x", by="me")
    await registry.register("default", "x", ref_of("b"), by="me")
    with pytest.raises(AdapterNotFound):
        registry.snapshot.adapter(acme, "x")


async def test_some_can_be_granted_nothing(registry: Registry) -> None:
    await registry.register("default", "x", ref_of("a"), by="me")
    for to in ("default", "shared", "nobody", "No\0body"):
        with pytest.raises(InvalidRequest):
            await registry.grant("default", "x", to, by="me")
    with pytest.raises(InvalidRequest):
        await registry.revoke("No\0body", "x", "default", by="me")


async def test_what_there_is_not_can_not_be_changed(registry: Registry) -> None:
    for name in ("nothing", "a\0b", "a/b", ""):
        for change in (
            registry.delete("default", name, by="me"),
            registry.set_pinned("default", name, True, by="me"),
            registry.grant("default", name, "acme", by="me"),
        ):
            with pytest.raises(AdapterNotFound):
                await change


async def test_what_can_not_be_registered(registry: Registry) -> None:
    for tenant, name, source_uri, param in (
        ("default", "a/b", None, "name"),
        ("nobody", "x", None, "tenant"),
        ("no\0body", "x", None, "tenant"),
        ("default", "x", "s3://a\0b", "uri"),
        ("default", "x", "s3://\ud800", "uri"),
    ):
        with pytest.raises(InvalidRequest) as error:
            await registry.register(tenant, name, ref_of("a"), source_uri=source_uri, by="me")
        assert error.value.param == param
    assert not registry.snapshot.digests()


def test_text_is_whatever_a_database_takes() -> None:
    check_text(None, "x")
    check_text("plain, ünïcode, \U0001f600 and \n", "x")


async def test_the_adapters_of_the_config_file_are_changed_there(open_registry: OpenRegistry) -> None:
    overlay = AdapterVersion("shared", "shared", "roman", 1, ref_of("a"), None, None, None, False, 0.0)
    registry = await open_registry(shared=SharedAdapters({"roman": overlay}))
    assert registry.snapshot.adapter("default", "roman") == overlay
    for change in (
        registry.register("shared", "roman", ref_of("b"), by="me"),
        registry.delete("shared", "roman", by="me"),
        registry.set_pinned("shared", "roman", True, by="me"),
        registry.grant("shared", "roman", "acme", by="me"),
    ):
        with pytest.raises(Conflict, match="'shared/roman' comes from the config file"):
            await change
    assert (await registry.register("shared", "hex", ref_of("b"), by="me"))[0].full_name == "shared/hex"


async def test_a_tenants_adapters_are_limited_in_number(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, max_adapters=2, by="me")).tenant_id
    for name in ("x", "y", "x"):
        await registry.register(acme, name, ref_of(f"{name}{registry.snapshot.revision}"), by="me")
    with pytest.raises(AdapterLimitReached, match=r"may have 2 adapters .`max_adapters`. and has 2") as error:
        await registry.register(acme, "z", ref_of("z"), by="me")
    assert (error.value.code, error.value.retry_after_s) == ("adapter_limit_reached", None)
    await registry.delete(acme, "x", by="me")
    await registry.register(acme, "z", ref_of("z"), by="me")
    bolt = (await registry.put_tenant("bolt", NO_QUOTA, max_adapters=1, by="me")).tenant_id
    await registry.register(bolt, "x", ref_of("x"), by="me")
    with pytest.raises(AdapterLimitReached, match=r"may have 1 adapter .`max_adapters`. and has 1"):
        await registry.register(bolt, "y", ref_of("y"), by="me")


async def test_a_tenants_adapters_are_limited_in_bytes(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, max_adapter_bytes=100, by="me")).tenant_id
    await registry.register(acme, "x", ref_of("a", num_bytes=60), by="me")
    await registry.register(acme, "x", ref_of("b", num_bytes=70), by="me")
    with pytest.raises(AdapterLimitReached, match=r"100 bytes together .*, and would have 101"):
        await registry.register(acme, "y", ref_of("c", num_bytes=31), by="me")
    await registry.register(acme, "y", ref_of("d", num_bytes=30), by="me")


async def test_an_adapter_that_could_never_fit_is_no_matter_of_trying_again(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, max_adapter_bytes=100, by="me")).tenant_id
    with pytest.raises(InvalidRequest, match="has 101 bytes, but all adapters of tenant 'acme' together may have 100"):
        await registry.register(acme, "x", ref_of("a", num_bytes=101), by="me")
    await registry.register(acme, "x", ref_of("b", num_bytes=100), by="me")


async def test_a_tenant_may_be_allowed_no_adapters(registry: Registry) -> None:
    for limit in ("max_adapters", "max_adapter_bytes"):
        acme = (await registry.put_tenant("acme", NO_QUOTA, by="me")).tenant_id
        await registry.patch_tenant("acme", {limit: 0}, by="me")
        with pytest.raises(Forbidden, match=f"its quota `{limit}` is 0"):
            await registry.register(acme, "x", ref_of("a"), by="me")


async def test_limits_hold_however_many_register_at_once(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(2)]
    acme = (await registries[0].put_tenant("acme", NO_QUOTA, max_adapters=3, by="me")).tenant_id
    outcomes = await asyncio.gather(
        *(registries[i % 2].register(acme, f"x{i}", ref_of(f"d{i}"), by="me") for i in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 3
    assert sum(isinstance(outcome, AdapterLimitReached) for outcome in outcomes) == 5


async def test_races_for_one_name_are_settled_one_after_the_other(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(2)]
    outcomes = await asyncio.gather(
        *(registries[i % 2].register("default", "x", ref_of(f"d{i}"), by="me") for i in range(8))
    )
    assert sorted(version.version for version, is_new in outcomes if is_new) == list(range(1, 9))
    newest, _ = max(outcomes, key=lambda outcome: outcome[0].version)
    for registry in registries:
        assert (await registry.refresh()).adapter("default", "x") == newest


async def test_of_the_same_bytes_at_once_one_is_a_new_version(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(2)]
    outcomes = await asyncio.gather(
        *(registries[i % 2].register("default", "x", ref_of("d"), by="me") for i in range(6))
    )
    assert [version.version for version, _ in outcomes] == [1] * 6
    assert sum(is_new for _, is_new in outcomes) == 1


async def test_many_who_change_at_once_keep_no_reader_waiting(registry: Registry) -> None:
    async with registry._database.writing():
        changes = [asyncio.create_task(registry.register("default", f"x{i}", ref_of("d"), by="me")) for i in range(30)]
        await asyncio.sleep(0)
        await registry.refresh()
        assert not any(change.done() for change in changes)
    await asyncio.gather(*changes)
    assert len(registry.snapshot.adapters("default")) == 30


async def test_of_those_who_want_a_new_name_one_gets_it(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(2)]
    outcomes = await asyncio.gather(
        *(registries[i % 2].register("default", "x", ref_of("d"), by="me", must_be_new=True) for i in range(6)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 1
    assert all(isinstance(outcome, tuple | Conflict) for outcome in outcomes)


async def test_followers_and_newcomers_see_the_same(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    ids = [(await one.put_tenant(f"t{number}", NO_QUOTA, by="me")).tenant_id for number in range(3)]
    for number in range(24):
        await one.register(ids[number % 3], f"x{number // 6}", ref_of(f"d{number}"), by="me")
        if number % 7 == 0:
            await one.delete(ids[number % 3], f"x{number // 6}", by="me")
        if number % 5 == 0:
            await other.refresh()
    later = await open_registry()
    assert one.snapshot == await other.refresh() == later.snapshot


async def test_a_name_that_is_registered_again_and_again_does_not_grow(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("punica_serve.registry.adapter_changes._KEPT_VERSIONS", 3)
    for number in range(8):
        await registry.register("default", "x", ref_of(f"d{number}"), by="me")
    async with registry._database.reading() as connection:
        rows = (await connection.exec_driver_sql("SELECT version FROM adapters")).scalars().all()
    assert sorted(rows) == [6, 7, 8]


async def test_changes_of_all_kinds_at_once_leave_one_truth(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(3)]

    async def churn(number: int) -> None:
        registry = registries[number % 3]
        for step in range(2):
            try:
                await registry.register("default", f"x{number % 2}", ref_of(f"d{number}{step}"), by="me")
                await registry.set_pinned("default", f"x{number % 2}", step % 2 == 0, by="me")
                await registry.delete("default", f"x{number % 2}", by="me")
            except PunicaError as error:
                assert isinstance(error, AdapterNotFound)

    await asyncio.gather(*(churn(number) for number in range(6)))
    first, *others = [await registry.refresh() for registry in registries]
    assert all(first == other for other in others)
    assert not first.digests()


async def test_an_adapter_of_another_services_base_model_is_refused_with_both_names(
    open_registry: OpenRegistry,
) -> None:
    small = await open_registry(shared=SharedAdapters(base=ServedBase("small", "a shape")))
    large = await open_registry(shared=SharedAdapters(base=ServedBase("large", "another shape")))
    ours, _ = await large.register("default", "ours", ref_of("o"), by="me")
    theirs, _ = await small.register("default", "theirs", ref_of("t"), by="me")
    await small.set_pinned("default", "theirs", True, by="me")
    await large.set_pinned("default", "ours", True, by="me")
    snapshot = await large.refresh()
    assert [adapter.name for adapter in snapshot.adapters("default")] == ["ours", "theirs"], "both can be managed"
    assert (snapshot.shared.serves(ours), snapshot.shared.serves(theirs)) == (True, False)
    assert [adapter.name for adapter in snapshot.pinned()] == ["ours"]
    with pytest.raises(AdapterRejected, match="registered for the base model 'small', and this service's is 'large'"):
        snapshot.shared.check_served(theirs)
    small.snapshot.shared.check_served(theirs)


async def test_an_adapter_of_an_unknown_base_model_is_served_until_it_is_registered_again(
    open_registry: OpenRegistry,
) -> None:
    """As one that an older version of punica-serve has registered."""
    old = await open_registry()
    large = await open_registry(shared=SharedAdapters(base=ServedBase("large", "its shape")))
    version, _ = await old.register("default", "x", ref_of("a"), by="me")
    assert version.registered_for is None and (await large.refresh()).shared.serves(version)
    again, _ = await large.register("default", "x", ref_of("a"), by="me")
    assert (again.version, again.registered_for) == (1, ServedBase("large", "its shape"))


async def test_a_base_model_of_another_name_and_the_same_shape_has_the_same_adapters(
    open_registry: OpenRegistry,
) -> None:
    one = await open_registry(shared=SharedAdapters(base=ServedBase("v1", "shape")))
    other = await open_registry(shared=SharedAdapters(base=ServedBase("v2", "shape")))
    version, _ = await one.register("default", "x", ref_of("a"), by="me")
    assert (await other.refresh()).shared.serves(version)


@pytest.mark.parametrize(("named", "is_served"), [("hub/llama-instruct", True), ("hub/llama", False), (None, False)])
async def test_a_strict_service_serves_what_names_its_base_model_alone(
    open_registry: OpenRegistry, named: str | None, is_served: bool
) -> None:
    """Wherever it was registered: by a service of another base model of the same shape, which let it in."""
    base = await open_registry(shared=SharedAdapters(base=ServedBase("llama", "shape")))
    strict = SharedAdapters(base=ServedBase("instruct", "shape"), strict_name="/models/llama-instruct")
    instruct = await open_registry(shared=strict)
    version, _ = await base.register("default", "x", ref_of("a"), by="me", base_model=named)
    snapshot = await instruct.refresh()
    assert snapshot.shared.serves(version) == is_served and base.snapshot.shared.serves(version)
    if not is_served:
        with pytest.raises(AdapterRejected, match=r"`base_model_name_or_path` of adapter .* and this service's base"):
            snapshot.shared.check_served(version)
