from punica_serve.adapters.dummy import dummy_adapters, dummy_name, dummy_number
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.shapes import shape_of

MODEL = shape_of("llama-2-7b")


def test_dummies_are_as_large_as_files_of_their_rank() -> None:
    (ref,) = dummy_adapters(1, 16, MODEL).values()
    assert ref.num_bytes == 79_953_920, "40 million weights of 16 bits"
    assert pages_needed(ref.ranks) == {"qkv": 2, "o": 2, "gate_up": 2, "down": 2}


def test_each_has_a_name_a_number_and_a_digest_of_its_own() -> None:
    refs = dummy_adapters(3, 16, MODEL)
    assert list(refs) == [dummy_name(number) for number in range(3)]
    assert [dummy_number(ref) for ref in refs.values()] == [0, 1, 2]
    digests = {ref.digest for rank in (8, 16) for ref in dummy_adapters(3, rank, MODEL).values()}
    assert len(digests) == 6 and all(len(digest) == 64 for digest in digests)
