"""Keys of pages: equal for equal contents of one owner, and for nothing else."""

from itertools import combinations, product

from punica_serve.paging.prefix_hash import BLOCK_PAGES, HINT_PAGES, hint_of, hints_of, prefix_hash
from punica_serve.protocol import AdapterRef, PrefixCaching, Request, SamplingParams

SETTINGS = PrefixCaching("base")


def _request(adapter: str | None = None, tenant: str | None = None, salt: str | None = None) -> Request:
    ref = AdapterRef(adapter, "", 0, {}) if adapter is not None else None
    return Request("r", 0, (1, 2), SamplingParams(), ref, tenant_id=tenant, cache_salt=salt)


def _keys(request: Request, tokens: tuple[int, ...] = (1, 2, 3, 4), settings: PrefixCaching = SETTINGS) -> list[bytes]:
    return prefix_hash(request, settings, 2).keys(tokens, 2)


def test_a_page_is_named_by_all_tokens_up_to_its_end() -> None:
    keys = _keys(_request())
    assert keys == _keys(_request()) and len(set(keys)) == 2
    assert _keys(_request(), (1, 2, 3, 5))[0] == keys[0] and _keys(_request(), (1, 2, 3, 5))[1] != keys[1]
    assert _keys(_request(), (0, 2, 3, 4))[1] != keys[1]


def test_keys_are_the_same_in_one_go_and_page_by_page() -> None:
    num_pages = 2 * BLOCK_PAGES + 3
    tokens = tuple(range(1000, 1000 + 4 * num_pages))
    for invoked_at in (0, 3, 4, 30, 4 * BLOCK_PAGES, 4 * num_pages):
        grown = prefix_hash(_request("x"), SETTINGS, 4, invoked_at=invoked_at)
        by_page = [grown.keys(tokens[: 4 * count], count)[-1] for count in range(1, num_pages + 1)]
        at_once = prefix_hash(_request("x"), SETTINGS, 4, invoked_at=invoked_at)
        assert by_page == at_once.keys(tokens, num_pages) and len(set(by_page)) == num_pages
        assert grown.keys(tokens, 3) == by_page[:3]
        for first in range(0, num_pages, 7):
            walked = prefix_hash(_request("x"), SETTINGS, 4, invoked_at=invoked_at).walk(tokens, num_pages, first)
            assert list(walked) == by_page[first:]


def test_a_key_depends_on_every_token_before_it_in_other_blocks_too() -> None:
    tokens = list(range(3 * BLOCK_PAGES))
    keys = prefix_hash(_request(), SETTINGS, 1).keys(tokens, len(tokens))
    for changed in (0, BLOCK_PAGES - 1, BLOCK_PAGES, 2 * BLOCK_PAGES + 1):
        others = [*tokens[:changed], 7_000, *tokens[changed + 1 :]]
        found = prefix_hash(_request(), SETTINGS, 1).keys(others, len(tokens))
        assert found[:changed] == keys[:changed] and set(found[changed:]).isdisjoint(keys)


def test_blocks_of_the_same_tokens_have_other_keys_behind_another_beginning() -> None:
    """Also where a block is one that is kept: it is another tenant's, or comes later in the prompt."""
    tokens = [5] * (3 * BLOCK_PAGES)
    keys = [
        key
        for tenant in ("a", "b")
        for key in prefix_hash(_request(tenant=tenant), SETTINGS, 1).keys(tokens, len(tokens))
    ]
    assert len(set(keys)) == 2 * len(tokens)


def test_no_name_is_mistaken_for_another_thing_of_the_same_name() -> None:
    """Two versions have two digests; a salt may be an adapter's digest, or a tenant's id."""
    names = (None, "", "a", "a\0", "tenant=a")
    owners = list(product(names, names, names))
    keys = {owner: tuple(_keys(_request(*owner))) for owner in owners}
    assert all(keys[one] != keys[other] for one, other in combinations(owners, 2))


def test_models_and_page_sizes_share_nothing() -> None:
    other_model = prefix_hash(_request(), PrefixCaching("other"), 2).keys((1, 2), 1)
    other_size = prefix_hash(_request(), SETTINGS, 1).keys((1, 2), 2)
    other_angles = prefix_hash(_request(), SETTINGS, 2, rotary_start=64).keys((1, 2), 1)
    assert len({*_keys(_request())[:1], *other_model, *other_size, *other_angles}) == 5


def test_a_cluster_wide_scope_leaves_out_the_tenant_alone() -> None:
    wide = PrefixCaching("base", "cluster")
    shared = [_keys(_request(tenant=tenant), settings=wide) for tenant in (None, "a", "b")]
    assert shared[0] == shared[1] == shared[2]
    assert _keys(_request(tenant="a", salt="s"), settings=wide) != shared[0]
    assert _keys(_request("x", "a"), settings=wide) == _keys(_request("x", "b"), settings=wide) != shared[0]


def test_hints_stand_for_the_keys_of_pages_in_powers_of_two() -> None:
    tokens = tuple(range(5, 5 + 4 * 70 + 1))
    for request in (_request(), _request("x", "a", "s")):
        keys = prefix_hash(request, SETTINGS, 4).keys(tokens, 70)
        expected = tuple(hint_of(keys[pages - 1]) for pages in (1, 2, 4, 8, 16, 32, 64))
        assert hints_of(request, SETTINGS, 4, tokens) == expected
        assert hints_of(request, SETTINGS, 4, tokens[:-1]) == expected
        assert hints_of(request, SETTINGS, 4, tokens[: 4 * 64]) == expected[:-1]
    assert hints_of(_request(), SETTINGS, 4, tokens[:4]) == (), "the last token is always computed"
    assert len(hints_of(_request(), SETTINGS, 1, tuple(range(10_000)))) == len(HINT_PAGES)
