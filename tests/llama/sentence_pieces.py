#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains sentencepiece vocabularies on the documentation of this project and
tokenizes some texts, as the reference for the tokenizer of examples/llama.

    sentence_pieces.py FOLDER

Writes NAME.gguf and NAME.json for each, and some incomplete files. Exits with
77 if Python has no sentencepiece or no gguf.
"""
import io
import json
import pathlib
import sys

try:
    import gguf
    import numpy
    import sentencepiece
except ImportError as error:
    print(error)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINED = ["[INST]", "[INST]]", "tensor parallel", "\u2581or\u2581["]
KINDS = {
    "bytes": {"byte_fallback": True},
    "defined": {"byte_fallback": True, "user_defined_symbols": DEFINED},
    "unknown": {"byte_fallback": False},
    "no_space": {"byte_fallback": True, "add_dummy_prefix": False}}
TEXTS = [
    "Hello, world!", "  two  spaces 42 and 3.14 ", "naïve 日本語 😀", "", " ",
    "a\n\n b\t\tc", "the tensor that is cut along the first dimension",
    "tensor parallel and [INST]] or [INST] tensor parallel", "zzzzzzzz qqqq",
    "ranks" * 50, "\u2581 is how a space looks", "x" * 300, "日日日 and 日本"]


def corpus():
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield from (line for line in page.read_text().splitlines() if line)


def trained(options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=corpus(), model_writer=model, vocab_size=700,
        model_type="bpe", normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        character_coverage=0.99, minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind_of(model, token, defined):
    if model.id_to_piece(token) in defined:
        return gguf.TokenType.USER_DEFINED
    for asks, kind in ((model.is_unknown, gguf.TokenType.UNKNOWN),
                       (model.is_control, gguf.TokenType.CONTROL),
                       (model.is_byte, gguf.TokenType.BYTE)):
        if asks(token):
            return kind
    return gguf.TokenType.NORMAL


def write(path, model, options, kind="llama", scores=None):
    tokens = range(model.get_piece_size())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list([model.id_to_piece(t) for t in tokens])
    writer.add_token_scores([model.get_score(t) for t in tokens][:scores])
    writer.add_token_types([
        kind_of(model, t, options.get("user_defined_symbols", [])) for t in tokens])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    if not options.get("add_dummy_prefix", True):
        writer.add_add_space_prefix(False)
    writer.add_tensor("token_embd.weight", numpy.zeros((2, 2), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in KINDS.items():
        model = trained(options)
        write(folder / f"{name}.gguf", model, options)
        truth = [{"text": text, "tokens": [model.bos_id(), *model.encode(text)],
                  "decoded": model.decode(model.encode(text))} for text in TEXTS]
        (folder / f"{name}.json").write_text(json.dumps(truth))
    write(folder / "short.gguf", model, {}, scores=5)
    write(folder / "other.gguf", model, {}, kind="bert")
    write(folder / "no_merges.gguf", model, {}, kind="gpt2")


if __name__ == "__main__":
    main()
