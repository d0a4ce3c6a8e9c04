import torch

from punica_serve.demo.examples import answers, batches, collate, long_counts
from punica_serve.demo.tokenizer import build_tokenizer


def test_answers_are_prompt_and_answer_of_each_integer() -> None:
    tokenizer = build_tokenizer()
    example = answers(tokenizer, "hex")[42]
    assert tokenizer.decode(example.prompt_ids, skip_special_tokens=False) == "42<sep>"
    assert tokenizer.decode(example.answer_ids, skip_special_tokens=False) == "2a<eos>"


def test_the_tag_is_for_notations_only() -> None:
    tokenizer = build_tokenizer()
    assert answers(tokenizer, "hex", tagged=True)[42].prompt_ids[0] == tokenizer.token_to_id("<hex>")
    assert answers(tokenizer, None, tagged=True) == answers(tokenizer, None)


def test_long_counts_go_on_after_the_end_of_sequence() -> None:
    tokenizer = build_tokenizer()
    example = long_counts(tokenizer, 60)[997]
    assert len(example.prompt_ids) + len(example.answer_ids) == 60
    text = tokenizer.decode(example.answer_ids, skip_special_tokens=False)
    assert text.startswith("998 999 1000 1001 1002 1003<eos> 1004 1005")


def test_the_loss_sees_answers_only() -> None:
    tokenizer = build_tokenizer()
    short, long = answers(tokenizer, "binary")[7], answers(tokenizer, "binary")[900]
    input_ids, labels = collate([short, long])
    assert input_ids.shape == labels.shape == (2, len(long.prompt_ids) + len(long.answer_ids))
    assert labels[0][labels[0] >= 0].tolist() == short.answer_ids
    assert labels[1][labels[1] >= 0].tolist() == long.answer_ids
    assert input_ids[1].tolist() == long.prompt_ids + long.answer_ids


def test_a_pass_holds_every_example_once_in_an_order_of_its_seed() -> None:
    examples = answers(build_tokenizer(), "hex")[:8]
    first, again = (batches(examples, 4, torch.Generator().manual_seed(1)) for _ in range(2))
    one_pass = torch.cat([next(first)[0][:, :1], next(first)[0][:, :1]])
    assert sorted(one_pass.flatten().tolist()) == list(b"01234567")
    assert one_pass.equal(torch.cat([next(again)[0][:, :1], next(again)[0][:, :1]]))
