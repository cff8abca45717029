"""Makes a tiny random Llama with its tokenizer in a folder; run by the Python that has vLLM: `model.py FOLDER`.

One in eight tokens of a byte-level vocabulary this small is a part of a character, so answers are full of halves.
"""

import json
import sys
from pathlib import Path

MAX_VOCABULARY = 1024
END, START, FINISH = "<|end|>", "<|start|>", "<|finish|>"
END_BOOST = 1.5  # of the end token's logit: an answer ends by itself after some dozens of tokens
CHAT_TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message['role'] }}\n{{ message['content'] }}" + FINISH + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
OTHERS = ["na\u00efve", "\u043c\u043e\u0441\u0442", "\u6cb3\u6d41", "\u6a4b", "\u2192", "\U0001f600", "\U0001f389"]


def word(number: int) -> str:
    """A pronounceable word for a number."""
    text = ""
    for _ in range(3):
        number, consonant = divmod(number, len(CONSONANTS))
        number, vowel = divmod(number, len(VOWELS))
        text += CONSONANTS[consonant] + VOWELS[vowel]
    return text


def corpus() -> list[str]:
    """Some text to learn merges from, the same each time."""
    return [
        " ".join([*(word(line * 7919 + step * 104729) for step in range(8)), OTHERS[line % len(OTHERS)]])
        for line in range(2000)
    ]


def make_tokenizer(folder: Path) -> tuple[int, int]:
    """Train a byte-level tokenizer; how many tokens it has, and the id of the one that ends an answer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - vLLM's Python only

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        special_tokens=[END, START, FINISH],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size(), tokenizer.token_to_id(END)


def make_model(folder: Path, vocabulary: int, end: int) -> None:
    """Save random weights, the same each time, whose greedy answers do not settle into one word."""
    import torch  # noqa: PLC0415 - vLLM's Python only
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - vLLM's Python only

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[end] *= END_BOOST
    model.save_pretrained(folder)


def main(folder: Path) -> None:
    """Write the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder, *make_tokenizer(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
