"""The demo model's tokenizer: one token per byte, so that any prompt can be encoded, and a few special tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from punica_serve.demo.notations import NOTATIONS

PAD, EOS, SEPARATOR = "<pad>", "<eos>", "<sep>"

#: Ends a chat as the post-processor ends a plain prompt, since no special tokens are added to a rendered template.
CHAT_TEMPLATE = (
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | last }}" + SEPARATOR
)


def tag(lora_id: str) -> str:
    """The special token that requests a notation from the base model: "<roman>42" is answered with XLII."""
    return f"<{lora_id}>"


def build_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are the bytes; the special tokens follow. The separator ends every prompt.

    Without it "101" could be a prompt, or "10" and the start of its answer.
    """
    vocab = {letter: byte for byte, letter in _byte_letters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [PAD, EOS, SEPARATOR, *map(tag, NOTATIONS)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {SEPARATOR}",
        pair=f"$A $B {SEPARATOR}",
        special_tokens=[(SEPARATOR, tokenizer.token_to_id(SEPARATOR))],
    )
    return tokenizer


def _byte_letters() -> dict[int, str]:
    """The printable letter by which byte-level tokenizers write each byte: itself, or the next free one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
