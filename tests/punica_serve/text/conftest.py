"""Small tokenizers of each family, trained here in milliseconds."""

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from punica_serve.text.tokenizer import Tokenizer

CORPUS = ["the quick brown fox", "naïve café, 你好世界", "👩‍🚀 emoji 😀😁", "  two  spaces"] * 4
SPECIAL_TOKENS = ["<s>", "</s>"]


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Byte-level BPE without a split into words, so that merges cross characters and tokens end inside them."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return Tokenizer(backend)


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """Llama 2's family: words start with a metaspace, unknown characters fall back to one token for each byte."""
    pieces = ["<unk>", *SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "h", "i", "e", "l", "o", "▁h", "▁hi", "▁hello", ".", "é"]
    merges = [("▁", "h"), ("▁h", "i")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.add_special_tokens(SPECIAL_TOKENS)
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    """One token for each character."""
    vocab = {letter: index for index, letter in enumerate(["<s>", "</s>", *"0123456789 abcdef→"])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<s>"))
    backend.add_special_tokens(SPECIAL_TOKENS)
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return Tokenizer(backend)
