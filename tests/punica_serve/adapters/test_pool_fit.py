import pytest

from punica_serve.adapters.pool_fit import check_fits_pool
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef

REF = AdapterRef("d", "/d", 1, {"q_proj": 4, "down_proj": 17})


def test_one_that_just_fits_is_taken() -> None:
    check_fits_pool(REF, 3)


def test_one_that_no_pool_could_hold_is_refused_with_the_fix() -> None:
    with pytest.raises(AdapterRejected, match=r"3 pages of down, .* has 2; .* `engine\.num_lora_pages` to 3 or more"):
        check_fits_pool(REF, 2)
