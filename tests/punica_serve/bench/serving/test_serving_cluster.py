from pathlib import Path

from punica_serve.base_model.config_json import read_model_config
from punica_serve.bench.serving.serving_cluster import with_dummies, write_tokenizer
from punica_serve.config.cluster import parse_config
from punica_serve.shapes import shape_folder
from punica_serve.text.tokenizer import Tokenizer


def test_the_cluster_has_room_for_all_adapters_on_the_host_and_for_a_batch_of_them_on_the_device() -> None:
    folder = shape_folder("llama-2-7b")
    config = parse_config({"engine": {"model": str(folder)}}, source="test", folder=Path())
    model = read_model_config(folder)
    sized = with_dummies(config, model, num_adapters=300, rank=16, batch_size=128)
    assert (sized.dummy_adapters.count, sized.dummy_adapters.rank) == (300, (16,))
    assert sized.engine.max_batch_size == 128
    assert sized.engine.num_lora_pages == 2 * (128 + 32)
    assert 300 * 79e6 < (sized.engine.host_cache_bytes or 0) < 300 * 81e6
    assert with_dummies(config, model, num_adapters=1, rank=16, batch_size=None).engine.num_lora_pages == 64


def test_every_token_of_a_written_tokenizer_has_a_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path / "own", 100))
    assert tokenizer.vocab_size == 100
    assert all(tokenizer.decode([token_id]) == f"w{token_id}" for token_id in range(100))
