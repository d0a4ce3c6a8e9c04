import pytest

from punica_serve.errors import InvalidRequest
from punica_serve.registry.names import check_adapter_name, check_tenant_name


@pytest.mark.parametrize("name", ["a", "Roman.v2", "0-9_x:y", "a" * 128])
def test_adapter_names(name: str) -> None:
    check_adapter_name(name)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "a" * 129, "é", "a\n", "..", "a\0"])
def test_what_no_adapter_is_called(name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be 1 to 128 letters") as error:
        check_adapter_name(name)
    assert error.value.param == "name"


@pytest.mark.parametrize("name", ["pin", "unpin", "prefetch"])
def test_no_adapter_is_called_as_what_is_done_with_one(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is reserved for a route"):
        check_adapter_name(name)


def test_no_adapter_is_called_as_the_base_model() -> None:
    with pytest.raises(InvalidRequest, match="'base' is the base model's"):
        check_adapter_name("base", base_name="base")


@pytest.mark.parametrize("name", ["acme", "a.b-c_d", "0"])
def test_tenant_names(name: str) -> None:
    check_tenant_name(name)


@pytest.mark.parametrize("name", ["", "Acme", "a/b", ".a", "a" * 64, "a\n"])
def test_what_no_tenant_is_called(name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be 1 to 63 small letters") as error:
        check_tenant_name(name)
    assert error.value.param == "tenant"
